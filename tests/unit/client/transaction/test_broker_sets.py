"""A transaction producer and several broker sets: each transaction belongs to one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import Message
from mq.errors import IllegalRequest, Unreachable
from mq.hashing import text_hash
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.status_pb2 import Status
from mq.wire.v1.transaction_pb2 import RESOLUTION_COMMIT
from tests.unit.client.transaction.scripted_brokers import Lost, ScriptedBrokers, cluster
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from mq.client import HalfMessage
    from mq.wire.v1.transaction_pb2 import TransactRequest


async def commits(message: HalfMessage, arg: Any = None) -> str:  # noqa: ARG001
    return "COMMIT"


async def leaves(message: HalfMessage, arg: Any = None) -> str:  # noqa: ARG001
    return "UNKNOWN"


async def started(*sets: ScriptedBrokers) -> None:
    while not all(brokers.starts for brokers in sets):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.01)


def test_halves_are_balanced_and_each_ends_where_it_is() -> None:
    async def main() -> None:
        sets = cluster("a", "b")
        async with sets[0].producer(commits) as producer:
            await started(*sets)
            results = [await producer.send_in_transaction("t", b"%d" % n) for n in range(16)]
        assert Counter(one.broker_set for one in results) == {"a": 8, "b": 8}
        for brokers in sets:
            mine = [one.transaction_id for one in results if one.broker_set == brokers.name]
            assert list(brokers.ends) == list(brokers.halves) == mine
            assert [half.sequence for half in brokers.halves.values()] == list(range(1, 9))

    run(main())


def test_a_key_and_a_queue_choose_the_set() -> None:
    async def main() -> None:
        sets = cluster("a", "b")
        async with sets[0].producer(commits) as producer:
            for n in range(10):
                message = Message(b"x", ordering_key=f"k{n}")
                result = await producer.send_in_transaction("t", message)
                assert result.broker_set == "ab"[text_hash(f"k{n}") % 8 // 4]
            result = await producer.send_in_transaction("t", b"x", queue_id=2, broker_set="b")
            assert (result.broker_set, sets[1].halves[result.transaction_id].queue_id) == ("b", 2)
            with pytest.raises(IllegalRequest, match="say which"):
                await producer.send_in_transaction("t", b"x", queue_id=2)

    run(main())


def test_every_set_can_ask_from_the_start_on_also_one_that_joins() -> None:
    async def main() -> None:
        sets = cluster("a", "b", "c")
        a, b, c = sets
        asked: list[str] = []

        async def check(message: HalfMessage) -> str:
            asked.append(message.transaction_id)
            return "COMMIT"

        async with a.producer(leaves) as first:
            await started(*sets)
            ids = [(await first.send_in_transaction("t", b"%d" % n)).transaction_id
                   for n in range(6)]  # fmt: skip
        for brokers in sets:
            brokers.starts.clear()
        # A producer that has sent nothing; one of the sets is not known yet.
        a.known = b.known = [a, b]
        async with a.producer(leaves, check) as second:
            second._connection.channels._sets |= {"c:1": c}  # type: ignore[attr-defined]
            await started(a, b)
            a.known = b.known = sets
            await asyncio.wait_for(started(c), 10)
            for brokers in sets:
                for name in brokers.halves:
                    brokers.ask(name)
            await asyncio.sleep(0.1)
        assert sorted(asked) == sorted(ids)
        for brokers in sets:
            assert {one.transaction_id for one in brokers.checked} == set(brokers.halves)
            assert {one.resolution for one in brokers.checked} == {RESOLUTION_COMMIT}

    run(main())


def test_a_dead_set_is_avoided_and_its_transactions_end_when_it_is_back() -> None:
    async def main() -> None:
        sets = cluster("a", "b")
        gone = asyncio.Event()

        async def execute(message: HalfMessage, arg: Any) -> str:
            if arg == "b dies" and message.broker_set == "b":
                sets[1].die()
                gone.set()
            return "COMMIT"

        async with sets[0].producer(execute, timeout_s=3) as producer:
            await started(*sets)
            sends = [asyncio.create_task(producer.send_in_transaction("t", b"x", "b dies"))
                     for _ in range(2)]  # fmt: skip
            await gone.wait()
            await asyncio.sleep(0.01)  # the end of the stream is seen
            results = [await producer.send_in_transaction("t", b"y", "") for _ in range(10)]
            assert {one.broker_set for one in results} == {"a"}
            assert {one.state for one in results} == {"COMMIT"}
            sets[1].down.clear()
            assert [one.state for one in await asyncio.gather(*sends)] == ["COMMIT"] * 2
            assert sorted(len(brokers.ends) for brokers in sets) == [1, 11]

    run(main())


def test_a_half_with_a_key_of_a_dead_set_fails_and_says_so() -> None:
    async def main() -> None:
        sets = cluster("a", "b")
        key = next(key for key in map(str, range(99)) if text_hash(key) % 8 // 4)
        async with sets[0].producer(commits, timeout_s=2) as producer:
            await started(*sets)
            sets[1].die()
            await asyncio.sleep(0.1)
            with pytest.raises(Unreachable, match="from broker set b in time; it was not sent"):
                await producer.send_in_transaction("t", Message(b"x", ordering_key=key))

    run(main())


@pytest.mark.parametrize("code", [wire.FLOW_CONTROL, wire.NOT_LEADER, wire.DISK_FULL])
def test_a_half_that_one_set_refuses_goes_to_the_other_at_once(code: int) -> None:
    async def main() -> None:
        sets = cluster("a", "b")

        def refuses(_brokers: ScriptedBrokers, request: TransactRequest) -> Status | None:
            if request.WhichOneof("kind") != "half":
                return None
            return Status(code=code, text="no", retry_after_ms=500)  # type: ignore[arg-type]

        loop = asyncio.get_running_loop()
        async with sets[0].producer(commits) as producer:
            await started(*sets)
            sets[1].script = refuses
            for _ in range(10):
                began_s = loop.time()
                assert (await producer.send_in_transaction("t", b"x")).broker_set == "a"
                assert loop.time() - began_s < 0.1

    run(main())


def test_a_half_in_doubt_stays_with_its_set_and_is_stored_once() -> None:
    async def main() -> None:
        sets = cluster("a", "b")

        def lost(brokers: ScriptedBrokers, request: TransactRequest) -> Status | None:
            if request.WhichOneof("kind") == "half":
                brokers.store(request.half)
                brokers.script = None
                raise Lost
            return None

        async with sets[0].producer(commits) as producer:
            await started(*sets)
            for brokers in sets:
                brokers.script = lost
            results = [await producer.send_in_transaction("t", b"%d" % n) for n in range(4)]
        assert sorted(one.state for one in results) == ["COMMIT"] * 4
        assert [len(brokers.halves) for brokers in sets] == [2, 2]

    run(main())


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_topic_that_is_drained_in_one_set_goes_on_in_the_other(is_deleted: bool) -> None:
    async def main() -> None:
        sets = cluster("a", "b")
        code = wire.TOPIC_NOT_FOUND if is_deleted else wire.PERMISSION_DENIED

        def refuses(_brokers: ScriptedBrokers, request: TransactRequest) -> Status | None:
            is_half = request.WhichOneof("kind") == "half"
            return Status(code=code, text="gone") if is_half else None

        async with sets[0].producer(commits) as producer:
            await started(*sets)
            for _ in range(4):
                await producer.send_in_transaction("t", b"x")
            sets[1].script = refuses
            if is_deleted:
                del sets[1].topics["t"]
            else:
                sets[1].closed.add("t")
            for n in range(8):
                message = Message(b"x", ordering_key=f"k{n}" if n % 2 else "")
                assert (await producer.send_in_transaction("t", message)).broker_set == "a"

    run(main())
