"""Transaction producers and a real broker: ends, questions, processes that die in between."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import Admin, HalfMessage, Message, Resolution, TransactionProducer, aio
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalGroup,
    IllegalTopic,
    PermissionDenied,
    TransactionNotFound,
    Unreachable,
)
from tests.support.broker_process import BrokerProcess
from tests.support.topics import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# A service that dies with its transaction open: the half message is stored, no word follows.
DIES = """
import os, signal, sys
from mq.client import Message, TransactionProducer

def execute(message, arg):
    print(message.transaction_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

producer = TransactionProducer(sys.argv[1], "shop", execute, lambda message: "UNKNOWN")
message = Message(b"order", tag="new", keys=["k"], properties={"a": "b"})
producer.send_in_transaction(sys.argv[2], message, first_check_s=0.5, check_interval_s=0.2)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as made:
        yield made


def stored(admin: Admin, topic: str) -> list[Any]:
    """All messages of a topic."""
    queues = admin.describe_topic(topic).queues
    return [
        one.message
        for queue in queues
        for one in admin.browse_messages(topic, queue.queue_id, 0, max_messages=1000).messages
    ]


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not question():  # noqa: ASYNC110 - what is asked about has no event
            await asyncio.sleep(0.01)


async def until_none_is_open(address: str, group: str) -> None:
    async with aio.Admin(address) as admin, asyncio.timeout(60):
        while (await admin.list_transactions(group)).open:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def commits(message: HalfMessage, arg: Any = None) -> str:  # noqa: ARG001 - what execute gets
    return "COMMIT"


def knows_nothing(message: HalfMessage, arg: Any = None) -> Resolution:  # noqa: ARG001
    return Resolution.UNKNOWN


def test_the_message_is_there_when_execute_says_so(broker: BrokerProcess, admin: Admin) -> None:
    seen: list[tuple[HalfMessage, Any]] = []
    before: list[int] = []

    def execute(message: HalfMessage, arg: Any) -> str:
        seen.append((message, arg))
        before.append(len(stored(admin, "said")))
        return str(arg)

    sent = Message(b"order", tag="new", keys=["k"], properties={"a": "b"}, ordering_key="c")
    with TransactionProducer(broker.address, "said", execute, knows_nothing) as producer:
        done = producer.send_in_transaction("said", sent, "COMMIT")
        gone = producer.send_in_transaction("said", sent, "ROLLBACK")
        later = producer.send_in_transaction("said", sent, "UNKNOWN")
    assert (done.state, gone.state, later.state) == ("COMMIT", "ROLLBACK", "UNKNOWN")
    assert before == [0, 1, 1]
    (message,) = stored(admin, "said")
    assert (message.body, message.tag, list(message.keys)) == (b"order", "new", ["k"])
    assert dict(message.properties) == {"a": "b"}
    first = seen[0][0]
    assert (first.transaction_id, first.topic, first.body) == (
        done.transaction_id,
        "said",
        b"order",
    )
    assert (first.tag, first.keys, first.properties) == ("new", ("k",), {"a": "b"})
    assert (first.queue_id, first.check) == (done.queue_id, 0)
    assert admin.get_message(done.message_id).message == message
    assert (gone.message_id, gone.queue_offset) == ("", -1)


def test_check_decides_transactions_that_execute_left_open(
    broker: BrokerProcess, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    asked: dict[str, HalfMessage] = {}

    def execute(message: HalfMessage, arg: Any) -> Any:  # noqa: ARG001
        if arg == "raises":
            raise ConnectionError("no database")
        return arg

    def check(message: HalfMessage) -> str:
        asked[message.body.decode()] = message
        if message.body == b"raises":
            return "COMMIT"
        if message.check == 1:
            raise ConnectionError("no database yet")
        return "ROLLBACK" if message.body == b"unknown" else "COMMIT"

    with TransactionProducer(
        broker.address, "open", execute, check, first_check_s=0.05, check_interval_s=0.1
    ) as producer:
        for arg in ("raises", "unknown", None, 17):
            message = Message(str(arg), keys=["k"], properties={"a": "b"})  # type: ignore[arg-type]
            result = producer.send_in_transaction("open", message, arg and str(arg))
            assert result.state == "UNKNOWN"
        large = producer.send_in_transaction("open", Message(b"x" * 50_000), "UNKNOWN")
        eventually(lambda: len(stored(admin, "open")) == 4, "three are committed")
        eventually(lambda: admin.list_transactions("open").open == 0, "all have ended")
    bodies = sorted(one.body for one in stored(admin, "open") if len(one.body) < 20)
    assert bodies == [b"17", b"None", b"raises"]
    half = asked["raises"]
    assert (half.topic, half.keys, half.properties) == ("open", ("k",), {"a": "b"})
    # As it was sent, though it travelled compressed.
    assert asked["x" * 50_000].transaction_id == large.transaction_id
    assert "execute returned None" in caplog.text
    assert "no database yet" in caplog.text


def test_a_question_about_a_transaction_at_work_is_not_passed_on(
    broker: BrokerProcess, admin: Admin
) -> None:
    asked: list[str] = []

    def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
        def checks() -> int:
            return int(admin.list_transactions("slow").transactions[0].checks)

        eventually(lambda: checks() >= 2, "it was asked about")
        return "COMMIT"

    def check(message: HalfMessage) -> str:
        asked.append(message.transaction_id)
        return "ROLLBACK"

    with TransactionProducer(
        broker.address, "slow", execute, check, first_check_s=0.05, check_interval_s=0.1
    ) as producer:
        assert producer.send_in_transaction("slow", b"order").state == "COMMIT"
    assert asked == []
    assert len(stored(admin, "slow")) == 1


def test_another_producer_of_the_group_is_asked_when_one_was_killed(
    broker: BrokerProcess, admin: Admin
) -> None:
    asked: list[HalfMessage] = []

    def check(message: HalfMessage) -> str:
        asked.append(message)
        return "COMMIT"

    with TransactionProducer(broker.address, "shop", commits, check):
        dead = subprocess.run(
            [sys.executable, "-c", DIES, broker.address, "killed"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        transaction_id = dead.stdout.strip()
        assert dead.returncode == -9, dead.stderr
        eventually(lambda: len(stored(admin, "killed")) == 1, "the other one commits")
    assert asked[0].transaction_id == transaction_id
    assert (asked[0].tag, asked[0].keys, asked[0].properties) == ("new", ("k",), {"a": "b"})
    (message,) = stored(admin, "killed")
    assert (message.body, message.tag, dict(message.properties)) == (b"order", "new", {"a": "b"})


def test_a_late_end_raises_the_error_that_fits(broker: BrokerProcess, admin: Admin) -> None:
    def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
        admin.end_transaction(message.transaction_id, commit=False)
        return "COMMIT"

    with (
        TransactionProducer(broker.address, "late", execute, knows_nothing) as producer,
        pytest.raises(TransactionNotFound, match="was rolled back"),
    ):
        producer.send_in_transaction("late", b"order")
    assert stored(admin, "late") == []


def test_without_a_half_message_execute_does_not_run(broker: BrokerProcess) -> None:
    ran: list[HalfMessage] = []

    def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
        ran.append(message)
        return "COMMIT"

    with TransactionProducer(broker.address, "none", execute, knows_nothing) as producer:
        with pytest.raises(IllegalTopic):
            producer.send_in_transaction("no/topic", b"x")
        with pytest.raises(PermissionDenied):
            producer.send_in_transaction("%SYS%HALF", b"x")
        with pytest.raises(IllegalConfig):
            producer.send_in_transaction("t", b"x", first_check_s=-1)
        with pytest.raises(TypeError):
            producer.send_in_transaction("t", 5)  # type: ignore[arg-type]
        assert producer.send_in_transaction("none", b"x").state == "COMMIT"
    with pytest.raises(ClientClosed, match="closed"):
        producer.send_in_transaction("none", b"x")
    assert len(ran) == 1
    with (
        TransactionProducer("127.0.0.1:1", "none", execute, knows_nothing, timeout_s=0.3) as nobody,
        pytest.raises(Unreachable),
    ):
        nobody.send_in_transaction("none", b"x")
    assert len(ran) == 1
    with pytest.raises(IllegalGroup):
        TransactionProducer(broker.address, "%bad", execute, knows_nothing)
    with pytest.raises(IllegalConfig):
        TransactionProducer(broker.address, "g", execute, knows_nothing, checks_max=0)


def test_a_broker_that_restarts_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    """Killed again and again while transactions run; the producer is idle in between, too."""
    count = 300
    local: dict[str, int] = {}
    results: list[str] = []

    async def execute(message: HalfMessage, arg: Any) -> str:
        if arg % 5 == 0:
            return "ROLLBACK"
        local[message.transaction_id] = arg
        return "UNKNOWN" if arg % 7 == 0 else "COMMIT"

    async def check(message: HalfMessage) -> str:
        return "COMMIT" if message.transaction_id in local else "ROLLBACK"

    with BrokerProcess(tmp_path / "data") as broker:

        async def produce() -> None:
            async with aio.TransactionProducer(
                broker.address,
                "restart",
                execute,
                check,
                timeout_s=60,
                first_check_s=0.2,
                check_interval_s=0.2,
                checks_max=1_000,
            ) as producer:

                async def run(worker: int) -> None:
                    for number in range(worker, count, 20):
                        result = await producer.send_in_transaction("restart", str(number), number)
                        results.append(result.state)

                workers = asyncio.gather(*(run(worker) for worker in range(20)))
                for goal in (50, 150):
                    await until(lambda goal=goal: len(results) >= goal)  # type: ignore[misc]
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                await workers
                # In good order, too: its streams are told to go.
                assert await asyncio.to_thread(broker.stop) == 0
                await asyncio.to_thread(broker.start)
                await until_none_is_open(broker.address, "restart")

        asyncio.run(produce())
        with Admin(broker.address) as admin:
            found = sorted(int(one.body) for one in stored(admin, "restart"))
    assert found == sorted(local.values())
    assert len(results) == count
    assert results.count("ROLLBACK") == 60


def test_many_threads_share_a_producer(broker: BrokerProcess, admin: Admin) -> None:
    with TransactionProducer(broker.address, "threads", commits, knows_nothing) as producer:

        def send(worker: int) -> None:
            for number in range(20):
                producer.send_in_transaction("threads", f"{worker} {number}")

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({one.body for one in stored(admin, "threads")}) == 160
    assert len(stored(admin, "threads")) == 160


def test_a_cancelled_transaction_is_decided_by_check(broker: BrokerProcess) -> None:
    async def main() -> None:
        at_work = asyncio.Event()

        async def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
            at_work.set()
            await asyncio.sleep(600)
            return "ROLLBACK"

        async def check(message: HalfMessage) -> str:
            return f"{message.body.decode().upper()}"

        async with (
            aio.Admin(broker.address) as admin,
            aio.TransactionProducer(
                broker.address, "cancelled", execute, check, first_check_s=0.1
            ) as producer,
        ):
            sending = asyncio.create_task(
                producer.send_in_transaction("cancelled", b"commit", check_interval_s=0.1)
            )
            await at_work.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await until_none_is_open(broker.address, "cancelled")
            queues = (await admin.describe_topic("cancelled")).queues
            assert sum(queue.end for queue in queues) == 1

    asyncio.run(main())
