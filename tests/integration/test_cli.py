"""The `mq` program in processes of its own against a real broker, as people and scripts use it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 60
MQ = [sys.executable, "-m", "mq"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


@pytest.fixture
def environment(server: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:3] != "MQ_"}
    return {**kept, "MQ_SERVER": server, "COLUMNS": "80"}


class Program:
    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def __call__(
        self, *arguments: str, stdin: bytes = b"", exit_code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = run_mq(*arguments, environment=self.environment, stdin=stdin, timeout=DEADLINE_S)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == exit_code, (done.stdout + done.stderr).decode()
        return done

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self(*arguments, "--json", stdin=stdin).stdout)

    def lines(self, *arguments: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        text = self(*arguments, "--json", stdin=stdin).stdout
        return [json.loads(line) for line in text.splitlines()]

    def refused(self, *arguments: str, exit_code: int = 1) -> str:
        """The text on stderr; nothing is on stdout."""
        done = self(*arguments, exit_code=exit_code)
        assert done.stdout == b""
        return done.stderr.decode()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*MQ, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def mq(environment: dict[str, str]) -> Program:
    return Program(environment)


def poll(question: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := question()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


# -- messages in and out ---------------------------------------------------------------------------


def test_produced_messages_are_consumed(mq: Program) -> None:
    text = mq("produce", "hello-topic", "hello", "second").stdout.decode()
    assert "SEND_OK" in text
    assert max(map(len, text.splitlines())) <= 80
    assert sorted(mq("consume", "hello-topic").stdout.splitlines()) == [b"hello", b"second"]
    # Nothing was committed: the next one sees the same.
    assert len(mq("consume", "hello-topic").stdout.splitlines()) == 2


def test_json_lines_make_a_copy_of_a_topic(mq: Program) -> None:
    lines = [
        {"body": "grün\nzwei", "tag": "a", "keys": ["k1", "k2"], "properties": {"x": "1"}},
        {"body_base64": "AP8=", "ordering_key": "customer-3"},
        {"body": ""},
    ]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    results = mq.lines("produce", "copy-from", "--jsonl", stdin=stdin)
    assert [result["status"] for result in results] == ["SEND_OK"] * 3
    first = mq("consume", "copy-from", "--jsonl").stdout
    mq("produce", "copy-to", "--jsonl", stdin=first)
    second = mq.lines("consume", "copy-to")

    def content(message: dict[str, Any]) -> str:
        own = ("body", "body_base64", "tag", "keys", "properties", "ordering_key")
        return json.dumps({key: message.get(key) for key in own}, sort_keys=True)

    copied = [json.loads(line) for line in first.splitlines()]
    assert sorted(map(content, copied)) == sorted(map(content, second))
    assert {result["message_id"] for result in results} == {each["message_id"] for each in copied}


def test_a_file_goes_in_and_out(mq: Program, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"".join(b"line %d\n" % number for number in range(5_000)))
    summary = mq("produce", "files", "--file", str(source), "--queue", "0").stdout
    assert summary.startswith(b"Sent 5,000 messages to files, ")
    mq("consume", "files", "--output", str(target))
    assert target.read_bytes() == source.read_bytes()


def test_a_group_gets_each_message_once_and_goes_on_where_it_was(mq: Program) -> None:
    mq("produce", "shared", stdin=b"".join(b"%d\n" % number for number in range(2_000)))
    first = mq("consume", "shared", "--group", "g", "--count", "700").stdout.splitlines()
    assert len(first) == 700
    rest = mq("consume", "shared", "--group", "g", "--timeout", "2").stdout.splitlines()
    assert sorted(map(int, first + rest)) == list(range(2_000))
    group = mq.json("group", "describe", "g")
    assert group["summary"]["lag"] == 0
    assert sum(queue["committed"] for queue in group["queues"]) == 2_000


def test_filters_choose_messages(mq: Program) -> None:
    for tag, amount in (("paid", "5"), ("paid", "500"), ("sent", "700")):
        mq("produce", "filtered", f"{tag} {amount}", "--tag", tag, "--property", f"amount={amount}")
    assert mq("consume", "filtered", "--tags", "sent || lost").stdout == b"sent 700\n"
    found = mq("consume", "filtered", "--sql", "amount > 100").stdout.splitlines()
    assert found == [b"paid 500", b"sent 700"]
    grouped = ("--group", "filters", "--tags", "paid", "--count", "2")
    assert sorted(mq("consume", "filtered", *grouped).stdout.splitlines()) == [
        b"paid 5",
        b"paid 500",
    ]


def test_places_in_time(mq: Program) -> None:
    stored_at_ms = mq.json("produce", "timed", "old")["stored_at_ms"]
    poll(lambda: time.time() * 1000 > stored_at_ms + 5)
    mq("produce", "timed", "new")
    assert mq("consume", "timed", "--from", str(stored_at_ms + 1)).stdout == b"new\n"
    assert mq("consume", "timed", "--from", "-1h").stdout == b"old\nnew\n"
    assert mq("consume", "timed", "--from", "latest").stdout == b""


@pytest.mark.parametrize("flags", [(), ("--group", "followers")])
def test_follow_shows_what_comes_until_it_is_interrupted(
    mq: Program, flags: tuple[str, ...]
) -> None:
    topic = f"followed-{len(flags)}"
    mq("produce", topic, "before")
    process = mq.start("consume", topic, "--follow", *flags)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"before\n"
        mq("produce", topic, "after")
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == b""
    if flags:
        assert mq.json("group", "describe", "followers")["summary"]["lag"] == 0


def test_a_reader_that_has_enough_ends_the_consumer_quietly(mq: Program) -> None:
    mq("produce", "long", stdin=b"x\n" * 50_000)
    with mq.start("consume", "long") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 1
        assert process.stderr.read() == b""


def test_results_come_while_the_input_is_still_open(mq: Program) -> None:
    with subprocess.Popen(
        [*MQ, "produce", "slow", "--json"],
        env=mq.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for body in (b"one\n", b"two\n"):
            process.stdin.write(body)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["status"] == "SEND_OK"


# -- administration --------------------------------------------------------------------------------


def test_the_life_of_a_topic(mq: Program) -> None:
    created = mq.json("topic", "create", "lived", "--queues", "3", "--type", "ordered")
    assert (created["write_queues"], created["type"]) == (3, "ordered")
    assert mq.refused("topic", "create", "lived", "--queues", "4").startswith("error: TOPIC_EXISTS")
    mq("produce", "lived", "a", "b")
    assert mq.json("topic", "alter", "lived", "--queues", "5")["read_queues"] == 5
    described = mq.json("topic", "describe", "lived")
    assert sum(queue["end"] for queue in described["queues"]) == 2
    assert "lived" in mq("topic", "list").stdout.decode()
    # Without a terminal to confirm.
    assert "not confirmed, nothing was done" in mq.refused("topic", "delete", "lived")
    assert mq.json("topic", "delete", "lived", "--yes")["messages"] == 2
    assert mq.refused("topic", "describe", "lived").startswith("error: TOPIC_NOT_FOUND")


def test_a_group_is_reset_and_deleted(mq: Program) -> None:
    mq("produce", "again", stdin=b"x\n" * 50)
    mq("consume", "again", "--group", "repeat", "--count", "50")
    flags = ("--topic", "again", "--to", "earliest")
    before = mq.json("group", "reset", "repeat", *flags, "--dry-run")
    assert sum(each["queue_offset"] for each in before["before"]) == 50
    assert mq.json("group", "describe", "repeat")["summary"]["lag"] == 0
    mq("group", "reset", "repeat", *flags)
    assert mq.json("group", "describe", "repeat")["summary"]["lag"] == 50
    again = mq("consume", "again", "--group", "repeat", "--count", "50").stdout
    assert again == b"x\n" * 50
    assert "repeat" in [each["group"] for each in mq.json("group", "list")]
    mq("group", "delete", "repeat", "--yes")
    assert mq.refused("group", "describe", "repeat").startswith("error: GROUP_NOT_FOUND")


def test_messages_are_found_by_id_key_and_place(mq: Program) -> None:
    body = "large " * 2_000
    sent = mq.json("produce", "looked-up", body, "--key", "order-7", "--tag", "t")
    found = mq.json("message", "get", sent["message_id"])
    assert (found["body"], found["keys"]) == (body, ["order-7"])
    assert mq("message", "get", sent["message_id"], "--raw").stdout.decode() == body
    (by_key,) = mq.json("message", "query", "--topic", "looked-up", "--key", "order-7")
    (by_place,) = mq.json("message", "browse", "--topic", "looked-up", "--from", "-1h")
    assert by_key == by_place == found
    assert mq.json("message", "browse", "--topic", "looked-up", "--tags", "other") == []
    assert mq.refused("message", "get", "set-0:1").startswith("error: MESSAGE_NOT_FOUND")


def test_the_cluster_is_shown_and_configured(mq: Program, server: str) -> None:
    (node,) = mq.json("cluster", "status")["nodes"]
    assert (node["role"], node["address"], node["is_ready"]) == ("leader", server, True)
    assert mq.json("cluster", "health")["is_healthy"] is True
    assert mq.json("cluster", "route")["broker_sets"][0]["leader_id"] == "node-0"
    (changed,) = mq.json("cluster", "set", "retention.hours", "24")
    assert changed["value"] == "24"
    options = {each["name"]: each["value"] for each in mq.json("cluster", "config", "retention")}
    assert options["retention.hours"] == "24"
    refused = mq.refused("cluster", "set", "store.flush", "async", exit_code=2)
    assert "cannot be changed while the node runs" in refused


def test_tables_fit_80_columns(mq: Program) -> None:
    mq("produce", "shown", "a body that is long enough to be wrapped " * 3, "--key", "k" * 40)
    mq("consume", "shown", "--group", "showing", "--count", "1")
    for command in (
        ("group", "describe", "showing"),
        ("message", "browse", "--topic", "shown"),
        ("cluster", "status"),
        ("cluster", "config"),
    ):
        text = mq(*command).stdout.decode()
        assert max(map(len, text.splitlines())) <= 80, text


# -- measuring -------------------------------------------------------------------------------------


def test_the_benches_print_figures(mq: Program) -> None:
    produced = mq.json("bench", "produce", "--messages", "2000", "--size", "100")
    several = mq.json("bench", "produce", "--messages", "501", "--producers", "2", "--batch", "10")
    consumed = mq.json("bench", "consume", "--messages", "2000")
    latency = mq.json("bench", "latency", "--messages", "20", "--rate", "100")
    assert [each["messages"] for each in (produced, several, consumed, latency)] == [
        2000,
        501,
        2000,
        20,
    ]
    for found in (produced, several, consumed, latency):
        assert found["messages_per_s"] > 0
        assert found["mb_per_s"] > 0
        assert 0 < found["p50_ms"] <= found["p99_ms"]
        assert found["client_cpu_s"] > 0
        assert found["broker_cpu_s"] > 0
    assert [each["group"] for each in mq.json("group", "list") if "bench" in each["group"]] == []


def test_a_bench_that_fails_says_it_in_one_line(mq: Program) -> None:
    mq("topic", "create", "closed", "--queues", "1")
    mq("topic", "alter", "closed", "--not-writable")
    for flags in ((), ("--producers", "2")):
        refused = mq.refused("bench", "produce", "--topic", "closed", *flags)
        assert refused.startswith("error: PERMISSION_DENIED: ")
        assert refused.count("\n") == 1


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [("topic", "list"), ("produce", "t", "body"), ("consume", "t"), ("bench", "produce")],
)
def test_without_a_broker_the_error_says_what_was_tried_and_what_to_do(
    mq: Program, command: tuple[str, ...]
) -> None:
    began_s = time.monotonic()
    refused = mq.refused(*command, "--server", "127.0.0.1:1")
    assert refused.startswith("error: UNREACHABLE: no broker answers at 127.0.0.1:1 (connection")
    assert "`mq server`" in refused
    assert refused.count("\n") == 1
    assert time.monotonic() - began_s < DEADLINE_S / 2


def test_errors_of_the_broker_are_one_line_each(mq: Program) -> None:
    for command, code in (
        (("consume", "missing"), "TOPIC_NOT_FOUND"),
        (("consume", "hello-topic", "--group", "%g"), "ILLEGAL_GROUP"),
        (("produce", "not/legal", "body"), "ILLEGAL_TOPIC"),
        (("produce", "hello-topic", "body", "--queue", "999"), "QUEUE_NOT_FOUND"),
        (("consume", "hello-topic", "--sql", "a >"), "ILLEGAL_FILTER"),
    ):
        refused = mq.refused(*command)
        assert refused.startswith(f"error: {code}: "), refused
        assert refused.count("\n") == 1


def test_a_group_may_wait_for_a_topic_that_is_not_there_yet(mq: Program) -> None:
    flags = ("--group", "early", "--count", "1", "--timeout", "30")
    with mq.start("consume", "comes-later", *flags) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"topic comes-later does not exist yet" in process.stderr.readline()
        poll(lambda: "early" in [each["group"] for each in mq.json("group", "list")])
        mq("produce", "comes-later", "first")
        assert process.stdout.readline() == b"first\n"
        assert process.wait(DEADLINE_S) == 0


def test_the_variable_that_names_brokers_does_not_keep_a_node_from_starting(
    mq: Program, tmp_path: Path
) -> None:
    assert "MQ_SERVER" in mq.environment
    mq("config")
    process = mq.start("server", "--data", str(tmp_path), "--port", "0", "--metrics-enabled", "no")
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"node is up" in line:
                break
        process.terminate()
        assert process.wait(DEADLINE_S) == 0


# -- a server, as a stranger meets it --------------------------------------------------------------


def read_until(terminal: int, text: str) -> str:
    shown = ""
    deadline = time.monotonic() + DEADLINE_S
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65_536).decode()
    return shown


def test_on_a_terminal_a_server_says_where_to_connect_and_what_to_try(
    mq: Program, tmp_path: Path
) -> None:
    terminal, theirs = pty.openpty()
    flags = ("--data", str(tmp_path), "--port", "0", "--metrics-enabled", "no")
    process = subprocess.Popen([*MQ, "server", *flags], env=mq.environment, stderr=theirs)
    try:
        shown = read_until(terminal, "Ctrl-C")
        assert "Clients connect to 127.0.0.1:" in shown
        assert "export MQ_SERVER=127.0.0.1:" in shown
        assert "produce greetings hello" in shown
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(theirs)


def test_a_port_that_is_taken_is_one_line(mq: Program, server: str, tmp_path: Path) -> None:
    port = server.rpartition(":")[2]
    flags = ("--data", str(tmp_path), "--port", port, "--metrics-enabled", "no")
    refused = mq.refused("server", *flags)
    assert refused.startswith(f"error: PORT_UNAVAILABLE: clients cannot connect to {server}: ")
    assert "--port" in refused
    assert refused.count("\n") == 1


def test_the_demo_does_what_it_says_and_ends_with_0(mq: Program) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mq.cli.demo"],
        env=mq.environment,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for part in ("A broker is up", "order 7 is paid", "messages/s", "p99", "has stopped"):
        assert part in done.stdout


def test_a_progress_bar_is_shown_to_a_person_alone(mq: Program) -> None:
    terminal, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(terminal, 65_536))
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()
    command = [*MQ, "bench", "produce", "--seconds", "1.5", "--json"]
    process = subprocess.Popen(command, env=mq.environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    stdout, _ = process.communicate(timeout=DEADLINE_S)
    reader.join(DEADLINE_S)
    os.close(terminal)
    assert process.returncode == 0
    assert b"messages, " in b"".join(shown)
    assert json.loads(stdout)["messages"] > 0
