"""A transaction producer and brokers that fail at the worst moment: each transaction once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from mq.client import Message, Resolution
from mq.client.transaction.checks import resolution_of
from mq.errors import (
    IllegalRequest,
    IllegalSequence,
    TransactionNotFound,
    Unauthenticated,
    Unreachable,
)
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.status_pb2 import Status
from mq.wire.v1.transaction_pb2 import RESOLUTION_COMMIT, RESOLUTION_ROLLBACK, RESOLUTION_UNKNOWN
from tests.unit.client.transaction.scripted_brokers import Lost, ScriptedBrokers, Silence
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.client import HalfMessage
    from mq.client.aio import TransactionProducer
    from mq.wire.v1.transaction_pb2 import TransactRequest


async def commits(message: HalfMessage, arg: Any = None) -> str:  # noqa: ARG001
    return "COMMIT"


def once(kind: str, what: Status | type[Exception], times: int = 1) -> Callable[..., Any]:
    """The first requests of this kind get this; lost and silent ones are carried out all the same
    if they are to be lost on the way back.
    """
    left = [times]

    def script(brokers: ScriptedBrokers, request: TransactRequest) -> Status | None:
        if request.WhichOneof("kind") != kind or not left[0]:
            return None
        left[0] -= 1
        if isinstance(what, Status):
            return what
        if kind == "half":
            brokers.store(request.half)
        else:
            brokers.end(request.end)
        raise what

    return script


def failing(kind: str, code: int, **fields: Any) -> Callable[..., Any]:
    return once(kind, Status(code=code, text="trouble", **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["half", "end"])
@pytest.mark.parametrize(
    "trouble",
    [
        lambda kind: once(kind, Lost),
        lambda kind: once(kind, Lost, times=3),
        lambda kind: failing(kind, wire.FLOW_CONTROL, retry_after_ms=50),
        lambda kind: failing(kind, wire.DISK_FULL),
        lambda kind: failing(kind, wire.REPLICATION_TIMEOUT),
        lambda kind: failing(kind, wire.OUTCOME_UNKNOWN),
        lambda kind: failing(kind, wire.NODE_STOPPED),
        lambda kind: failing(kind, wire.NOT_LEADER),
    ],
)
def test_a_retryable_request_is_sent_again_and_takes_effect_once(kind: str, trouble: Any) -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(script=trouble(kind))
        async with brokers.producer(commits) as producer:
            result = await producer.send_in_transaction("t", b"order")
        assert result.state == "COMMIT"
        assert (result.message_id, result.queue_offset) == ("set-0:77", 3)
        assert brokers.ends == {result.transaction_id: RESOLUTION_COMMIT}
        assert len(brokers.halves) == 1
        sent = [each for each in brokers.requests if each.WhichOneof("kind") == kind]
        assert len(sent) >= 2
        # The same again, to the byte: it has one number.
        assert len({each.SerializeToString() for each in sent}) == 1

    run(main())


def test_an_end_without_an_answer_is_unknown_and_says_why() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(script=once("end", Silence, times=100))
        async with brokers.producer(commits, timeout_s=2) as producer:
            result = await producer.send_in_transaction("t", b"order")
        assert result.state == "UNKNOWN"
        assert "it may have been stored" in result.reason

    run(main())


def test_an_end_that_was_decided_otherwise_is_an_error_not_a_rollback() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers()

        async def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
            brokers.ends[message.transaction_id] = RESOLUTION_ROLLBACK
            return "COMMIT"

        async with brokers.producer(execute) as producer:
            with pytest.raises(TransactionNotFound, match="was rolled back"):
                await producer.send_in_transaction("t", b"order")

    run(main())


def test_a_half_message_without_an_answer_fails_and_execute_does_not_run() -> None:
    async def main() -> None:
        ran: list[HalfMessage] = []

        async def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
            ran.append(message)
            return "COMMIT"

        brokers = ScriptedBrokers(script=once("half", Silence, times=100))
        async with brokers.producer(execute, timeout_s=1) as producer:
            with pytest.raises(Unreachable, match="it may have been stored"):
                await producer.send_in_transaction("t", b"order")
            brokers.script = None
            await producer.send_in_transaction("t", b"next")
        # Its number is not given to another one.
        numbers = [each.sequence for each in brokers.halves.values()]
        assert numbers == [1, 2]
        assert [each.body for each in ran] == [b"next"]

    run(main())


def test_the_number_of_what_was_refused_goes_to_the_next() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(script=failing("half", wire.MESSAGE_TOO_LARGE))
        async with brokers.producer(commits) as producer:
            with pytest.raises(Exception, match="trouble"):
                await producer.send_in_transaction("t", b"large")
            await producer.send_in_transaction("t", b"next")
        assert [each.sequence for each in brokers.halves.values()] == [1]

    run(main())


def test_too_many_gaps_make_it_another_producer() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(script=failing("half", wire.ILLEGAL_SEQUENCE))
        async with brokers.producer(commits) as producer:
            result = await producer.send_in_transaction("t", b"order")
        assert result.state == "COMMIT"
        names = [each.half.producer_id for each in brokers.requests if each.HasField("half")]
        assert len(set(names)) == len(names) == 2

    run(main())
    assert IllegalSequence.retryable is False


@pytest.mark.parametrize("code", [wire.TOPIC_NOT_FOUND, wire.QUEUE_NOT_FOUND])
def test_a_topic_that_changed_is_looked_up_again_once(code: int) -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(script=failing("half", code))
        async with brokers.producer(commits) as producer:
            assert (await producer.send_in_transaction("t", b"order")).state == "COMMIT"
            brokers.script = once("half", Status(code=code, text="gone"), times=2)  # type: ignore[arg-type]
            with pytest.raises(Exception, match="gone"):
                await producer.send_in_transaction("t", b"order")

    run(main())


def test_an_idle_producer_answers_checks_soon_after_its_leader_froze() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(("a:1", "b:1", "c:1"))
        answered = asyncio.Event()

        async def leaves(message: HalfMessage, arg: Any = None) -> str:  # noqa: ARG001
            return "UNKNOWN"

        async def check(message: HalfMessage) -> str:
            assert (message.body, message.check) == (b"order", 1)
            answered.set()
            return "COMMIT"

        async with brokers.producer(leaves, check) as producer:
            result = await producer.send_in_transaction("t", b"order")
            began_s = asyncio.get_running_loop().time()
            brokers.fail_over("b:1", is_frozen=True)
            while len(brokers.starts) < 2:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)
            took_s = asyncio.get_running_loop().time() - began_s
            assert took_s < 10
            assert {each.producer_group for each in brokers.starts} == {"g"}
            assert all(each.answers_checks for each in brokers.starts)
            brokers.ask(result.transaction_id)
            await answered.wait()
            await asyncio.sleep(0.1)
        assert [(each.transaction_id, each.resolution) for each in brokers.checked] == [
            (result.transaction_id, RESOLUTION_COMMIT)
        ]

    run(main())


def test_an_end_that_a_frozen_leader_does_not_answer_goes_to_the_next_leader() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(("a:1", "b:1", "c:1"))

        def freeze(brokers: ScriptedBrokers, request: TransactRequest) -> None:
            if request.WhichOneof("kind") == "end" and brokers.leading == "a:1":
                brokers.fail_over("b:1", is_frozen=True)
                raise Silence

        brokers.script = freeze
        async with brokers.producer(commits, timeout_s=10) as producer:
            result = await producer.send_in_transaction("t", b"order")
        assert result.state == "COMMIT"
        assert len(brokers.halves) == 1

    run(main())


def test_concurrent_transactions_are_matched_across_fail_overs() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers(("a:1", "b:1", "c:1"))
        count = [0]

        def script(brokers: ScriptedBrokers, _: TransactRequest) -> None:
            count[0] += 1
            if count[0] in (50, 150):
                brokers.down.clear()
                brokers.fail_over("b:1" if count[0] == 50 else "c:1")

        brokers.script = script

        async def execute(message: HalfMessage, arg: Any) -> str:
            assert message.body == b"%d" % arg
            return "COMMIT" if arg % 3 else "ROLLBACK"

        async with brokers.producer(execute, timeout_s=30) as producer:
            results = await asyncio.gather(
                *(producer.send_in_transaction("t", b"%d" % at, at) for at in range(200))
            )
        assert len({each.transaction_id for each in results}) == len(brokers.halves) == 200
        for at, result in enumerate(results):
            assert brokers.halves[result.transaction_id].messages[0].body == b"%d" % at
            assert result.state == ("COMMIT" if at % 3 else "ROLLBACK")

    run(main())


def test_a_question_about_what_is_at_work_is_left_to_its_end() -> None:
    async def main() -> None:
        brokers, asked = ScriptedBrokers(), []

        async def execute(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
            brokers.ask(message.transaction_id)
            await asyncio.sleep(1)
            return "COMMIT"

        async def check(message: HalfMessage) -> str:
            asked.append(message.transaction_id)
            return "ROLLBACK"

        async with brokers.producer(execute, check) as producer:
            await producer.send_in_transaction("t", b"order")
        assert asked == []
        assert brokers.checked == []

    run(main())


def test_a_slow_or_broken_check_delays_no_other_and_is_not_run_twice() -> None:
    async def main() -> None:
        brokers, running = ScriptedBrokers(), []
        release = asyncio.Event()

        async def leaves(message: HalfMessage, arg: Any) -> str:  # noqa: ARG001
            return "UNKNOWN"

        async def check(message: HalfMessage) -> str:
            running.append(message.body)
            if message.body == b"slow":
                await release.wait()
            if message.body == b"broken":
                raise ZeroDivisionError
            return "COMMIT"

        async with brokers.producer(leaves, check) as producer:
            names = {
                body: (await producer.send_in_transaction("t", body)).transaction_id
                for body in (b"slow", b"broken", b"quick")
            }
            for _ in range(3):
                for name in names.values():
                    brokers.ask(name)
                await asyncio.sleep(0.1)
            release.set()
            await asyncio.sleep(0.1)
        assert running.count(b"slow") == 1
        assert (running.count(b"quick"), running.count(b"broken")) == (3, 3)
        answers = [(each.transaction_id, each.resolution) for each in brokers.checked]
        assert answers.count((names[b"quick"], RESOLUTION_COMMIT)) == 3
        assert answers.count((names[b"broken"], RESOLUTION_UNKNOWN)) == 3
        assert answers[-1] == (names[b"slow"], RESOLUTION_COMMIT)

    run(main())


def test_a_half_message_has_its_queue_and_its_checks() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(commits, checks_max=3) as producer:
            for key in ("a", "a", ""):
                message = Message(b"x", ordering_key=key, tag="g", keys=["k"])
                await producer.send_in_transaction("t", message, first_check_s=0.0015)
            await producer.send_in_transaction("t", "text", queue_id=3, check_interval_s=60)
            with pytest.raises(IllegalRequest, match="delayed"):
                await producer.send_in_transaction("t", Message(b"x", delay_s=5))
        first, second, _, last = brokers.halves.values()
        assert first.queue_id == second.queue_id
        assert (last.queue_id, last.messages[0].body) == (3, b"text")
        assert first.half.producer_group == "g"
        assert (first.half.first_check_ms, first.half.checks_max) == (2, 3)
        assert (last.half.first_check_ms, last.half.check_interval_ms) == (0, 60_000)
        assert (list(first.key_counts), len(first.key_hashes)) == ([1], 1)

    run(main())


def test_a_priority_chooses_the_queue() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers()
        brokers.priorities = 2
        async with brokers.producer(commits) as producer:
            for priority in (0, 1, 1, 0, 1):
                await producer.send_in_transaction("t", Message(b"x", priority=priority))
            with pytest.raises(IllegalRequest, match="the topic has 2"):
                await producer.send_in_transaction("t", Message(b"x", priority=2))
        assert [each.queue_id % 2 for each in brokers.halves.values()] == [0, 1, 1, 0, 1]

    run(main())


def test_a_closed_producer_takes_no_transactions() -> None:
    async def main() -> None:
        brokers = ScriptedBrokers()
        producer: TransactionProducer = brokers.producer(commits)
        await producer.start()
        await producer.send_in_transaction("t", b"x")
        await producer.close()
        await producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send_in_transaction("t", b"x")
        assert len(brokers.calls) == 1

    run(main())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("COMMIT", Resolution.COMMIT),
        (Resolution.ROLLBACK, Resolution.ROLLBACK),
        ("commit", Resolution.UNKNOWN),
        (None, Resolution.UNKNOWN),
        (True, Resolution.UNKNOWN),
        ([], Resolution.UNKNOWN),
    ],
)
def test_anything_but_a_resolution_is_unknown(answer: object, expected: Resolution) -> None:
    assert resolution_of(answer, "check") is expected


def test_a_revoked_producer_hears_of_it_and_comes_back_with_the_next_transaction() -> None:
    status = Status(code=wire.UNAUTHENTICATED, text="the key was revoked")
    trailing = grpc.aio.Metadata(("mq-status-bin", status.SerializeToString()))
    revoked = grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, grpc.aio.Metadata(), trailing)

    def silent(*_: object) -> None:
        raise Silence

    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(commits) as producer:
            await producer.send_in_transaction("t", b"before")
            brokers.script = silent
            sending = asyncio.create_task(producer.send_in_transaction("t", b"in flight"))
            await asyncio.sleep(0.1)
            brokers.calls[-1].break_off(revoked)
            with pytest.raises(Unauthenticated, match="was revoked; it may have been stored"):
                await sending
            calls = len(brokers.calls)
            await asyncio.sleep(3)
            assert len(brokers.calls) == calls
            brokers.script = None
            assert (await producer.send_in_transaction("t", b"after")).state == "COMMIT"

    run(scenario())
