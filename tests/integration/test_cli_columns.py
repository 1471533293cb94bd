"""`mq consume --format arrow|parquet`: files that other programs read, also after Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from mq.client import Message, Producer
from mq.client.arrow.columns import message_schema
from mq.extras import install
from tests.support.broker_process import BrokerProcess
from tests.support.topics import committed, create_topic, eventually, fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 60
COUNT = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mq", "consume", *arguments]


def consume(server: str, *arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        command(*arguments),
        env={**os.environ, "MQ_SERVER": server},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done


def read(path: Path, kind: str) -> pa.Table:
    if kind == "parquet":
        return pa.parquet.read_table(path)
    with pa.ipc.open_file(path) as reader:
        return reader.read_all()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_file_has_every_message_with_all_that_is_known(
    server: str, name: str, kind: str, tmp_path: Path
) -> None:
    with Producer(server) as producer:
        for at in range(COUNT):
            message = Message(b"%d" % at, tag="even" if at % 2 == 0 else "odd", keys=["k"])
            message.properties = {"p": str(at)}
            producer.send(name, message)
    path = tmp_path / f"messages.{kind}"
    consume(server, name, "--format", kind, "-o", str(path))
    found = read(path, kind)
    assert found.schema.names == message_schema(with_properties=True).names
    rows = {
        (row["body"], row["tag"], *row["keys"], *row["properties"]) for row in found.to_pylist()
    }
    assert rows == {
        (b"%d" % at, "even" if at % 2 == 0 else "odd", "k", ("p", str(at))) for at in range(COUNT)
    }
    assert set(found.column("topic").to_pylist()) == {name}
    # With a filter, a count, and in place of the file that is there.
    consume(server, name, "--format", kind, "-o", str(path), "--tags", "odd", "--count", "7")
    found = read(path, kind)
    assert found.num_rows == 7
    assert set(found.column("tag").to_pylist()) == {"odd"}


def test_a_pipe_has_a_stream_which_ends_with_ctrl_c(server: str, name: str) -> None:
    bodies = fill(server, name, queues=2, each=10)
    with subprocess.Popen(
        command(name, "--format", "arrow", "--follow"),
        env={**os.environ, "MQ_SERVER": server},
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            with pa.ipc.open_stream(process.stdout) as reader:
                found: list[bytes] = []
                while len(found) < len(bodies):
                    found += reader.read_next_batch().column("body").to_pylist()
                assert set(found) == bodies
                with Producer(server) as producer:
                    producer.send(name, "later")
                assert reader.read_next_batch().column("body").to_pylist() == [b"later"]
                process.send_signal(signal.SIGINT)
                with pytest.raises(StopIteration):
                    reader.read_next_batch()
            assert process.wait(DEADLINE_S) == 130
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_file_is_complete(
    server: str, name: str, kind: str, how: signal.Signals, tmp_path: Path
) -> None:
    create_topic(server, name, 1)
    bodies = [random.Random(at).randbytes(1 << 20) for at in range(20)]
    with Producer(server) as producer:
        producer.send_arrow(name, pa.table({"body": bodies}))
    path = tmp_path / f"messages.{kind}"
    with subprocess.Popen(
        command(name, "--format", kind, "-o", str(path), "--follow"),
        env={**os.environ, "MQ_SERVER": server},
    ) as process:
        try:
            eventually(
                lambda: path.exists() and path.stat().st_size > 10 << 20, "there is no row group"
            )
            process.send_signal(how)
            assert process.wait(DEADLINE_S) == 130
        finally:
            process.kill()
    found = read(path, kind)
    assert found.column("body").to_pylist() == bodies[: found.num_rows]
    assert found.num_rows > 10


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_messages_of_a_group_are_done_when_the_file_is_complete(
    server: str, name: str, kind: str, tmp_path: Path
) -> None:
    bodies = fill(server, name, queues=2, each=100)
    path = tmp_path / "file"
    group = ("--group", name, "--from", "earliest", "--timeout", "5")
    arguments = (name, "--format", kind, "-o", str(path), *group)
    consume(server, *arguments, "--count", "60")
    found = read(path, kind).column("body").to_pylist()
    assert len(found) == 60
    assert sum(committed(server, name, name).values()) == 60
    consume(server, *arguments)
    found += read(path, kind).column("body").to_pylist()
    assert (len(found), set(found)) == (200, bodies)
    assert committed(server, name, name) == {0: 100, 1: 100}


def test_messages_of_a_group_that_was_killed_come_again(
    server: str, name: str, tmp_path: Path
) -> None:
    create_topic(server, name, 1)
    bodies = [random.Random(at).randbytes(1 << 20) for at in range(20)]
    with Producer(server) as producer:
        producer.send_arrow(name, pa.table({"body": bodies}))
    path = tmp_path / "file"
    arguments = (name, "--format", "parquet", "-o", str(path), "--group", name)
    with subprocess.Popen(
        command(*arguments, "--from", "earliest", "--follow"),
        env={**os.environ, "MQ_SERVER": server},
    ) as process:
        try:
            eventually(
                lambda: path.exists() and path.stat().st_size > 10 << 20, "there is no row group"
            )
        finally:
            process.kill()
    assert sum(committed(server, name, name).values()) == 0
    consume(server, *arguments, "--count", "20", "--timeout", "30")
    assert read(path, "parquet").column("body").to_pylist() == bodies


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--format", "arrow", "--json"), "--json and --format arrow are two formats: give one"),
        (("--format", "parquet", "--meta"), "--format parquet has everything: --meta is for text"),
        (("--format", "csv"), "'csv' is not one of 'text', 'json', 'arrow', 'parquet'"),
    ],
)
def test_formats_that_do_not_go_together(
    server: str, arguments: tuple[str, ...], text: str
) -> None:
    assert text in consume(server, "t", *arguments, exit_code=2).stderr.decode()


def test_a_path_that_cannot_be_written_is_told(server: str, name: str, tmp_path: Path) -> None:
    fill(server, name, queues=1, each=1)
    path = tmp_path / "missing" / "file.parquet"
    done = consume(server, name, "--format", "parquet", "-o", str(path), exit_code=1)
    assert f"cannot write to {path}" in done.stderr.decode()


def test_without_pyarrow_the_extra_is_named(server: str, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(name='pyarrow')\n")
    done = subprocess.run(
        command("t", "--format", "parquet", "-o", str(tmp_path / "x")),
        env={**os.environ, "MQ_SERVER": server, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"Error: Arrow needs pyarrow" in done.stderr
    assert install("arrow").encode() in done.stderr
    assert not (tmp_path / "x").exists()
