"""A producer and several broker sets: one that dies, is slow, is closed, or joins."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mq.client.cluster.connection import Connection
from mq.client.messages import Message, SendResult
from mq.errors import IllegalRequest, MqError, PermissionDenied, TopicNotFound, Unreachable
from mq.hashing import text_hash
from mq.wire.v1 import status_pb2 as wire
from tests.unit.client.producer.scripted_brokers import (
    Break,
    ScriptedBrokers,
    Silence,
    cluster,
    refusal,
)
from tests.unit.client.scripted_channels import connected
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from mq.wire.v1.message_pb2 import Batch
    from mq.wire.v1.producer_pb2 import BatchResult


def key_of(name: str) -> str:
    """A key that leads there, of two sets a and b with four queues each."""
    at = "ab".index(name)
    return next(key for key in map(str, range(999)) if text_hash(key) % 8 // 4 == at)


def stored(sets: list[ScriptedBrokers]) -> Counter[str]:
    return Counter(body for brokers in sets for body in brokers.bodies())


def test_messages_are_balanced_over_the_sets_and_results_say_which_one() -> None:
    async def scenario() -> tuple[list[ScriptedBrokers], list[SendResult]]:
        sets = cluster("a", "b")
        async with sets[0].producer() as producer:
            return sets, [await producer.send("t", f"{n}") for n in range(16)]

    sets, results = run(scenario())
    # The first ones go to whoever is connected first.
    assert min(len(brokers.stored) for brokers in sets) >= 6
    for result in results:
        assert result.broker_set == result.message_id.partition(":")[0]
    for brokers in sets:
        mine = [one for one in results if one.broker_set == brokers.name]
        assert [one.sequence for one in brokers.stored] == list(range(1, len(mine) + 1))


def test_messages_of_a_key_are_in_one_queue_of_one_set() -> None:
    async def scenario() -> list[ScriptedBrokers]:
        sets = cluster("a", "b")
        async with sets[1].producer(batch_bytes=100) as producer:
            for n in range(200):
                await producer.send_async("t", Message(f"{n}".encode(), ordering_key=f"k{n % 9}"))
        return sets

    sets = run(scenario())
    for key in range(9):
        at = text_hash(f"k{key}") % 8
        mine = [one for one in sets[at // 4].stored if one.ordering_key == f"k{key}"]
        assert [int(one.body) for one in mine] == list(range(key, 200, 9))
        assert {one.queue_id for one in mine} == {at % 4}


def test_a_set_that_is_dead_is_not_noticed_by_messages_without_a_key() -> None:
    async def scenario() -> tuple[list[ScriptedBrokers], float]:
        sets = cluster("a", "b")
        loop = asyncio.get_running_loop()
        slowest_s = 0.0
        async with sets[0].producer() as producer:
            for n in range(20):
                await producer.send("t", f"{n}")
            sets[1].die()
            for n in range(20, 60):
                began_s = loop.time()
                await producer.send("t", f"{n}")
                slowest_s = max(slowest_s, loop.time() - began_s)
            await asyncio.sleep(10)
            sets[1].down.clear()
            count = len(sets[1].stored)
            for n in range(60, 100):
                await producer.send("t", f"{n}")
                await asyncio.sleep(0.05)
            assert len(sets[1].stored) > count + 10, "it is used again when it is back"
        return sets, slowest_s

    sets, slowest_s = run(scenario())
    assert stored(sets) == {f"{n}": 1 for n in range(100)}
    assert slowest_s < 0.1


def test_messages_with_a_key_wait_for_their_set_or_fail_and_say_why() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")
        key = key_of("b")
        async with sets[0].producer(timeout_s=3) as producer:
            await producer.send("t", Message(b"first", ordering_key=key))
            sets[1].die()
            early = [
                asyncio.create_task(producer.send("t", Message(b"%d" % n, ordering_key=key)))
                for n in range(3)
            ]
            # Others are answered all the time: that does not lengthen the wait.
            for _ in range(100):
                await producer.send("t", Message(b"other", ordering_key=key_of("a")))
                await asyncio.sleep(0.05)
            errors = await asyncio.gather(*early, return_exceptions=True)
            for error in errors:
                assert isinstance(error, Unreachable)
                assert "broker set b within 3 s; it was not sent" in str(error)
            late = asyncio.create_task(producer.send("t", Message(b"late", ordering_key=key)))
            await asyncio.sleep(2)
            sets[1].down.clear()
            assert (await late).broker_set == "b"
        assert sets[1].bodies() == ["first", "late"]

    run(scenario())


def test_a_key_does_not_leave_a_set_that_owes_answers_however_long_it_is_unheard_of() -> None:
    async def scenario() -> None:
        sets = a, b = cluster("a", "b")
        key = key_of("b")
        order: list[tuple[int, str]] = []

        async with a.producer(timeout_s=1_000) as producer:

            async def send(number: int) -> None:
                result = await producer.send("t", Message(b"%d" % number, ordering_key=key))
                order.append((number, result.broker_set))

            await send(0)
            b.die()
            a.known = [a]  # as a broker that was started anew, and has not heard of b
            sends = [asyncio.create_task(send(number)) for number in (1, 2)]
            for _ in range(400):
                await producer.send("t", Message(b"other", ordering_key=key_of("a")))
                await asyncio.sleep(1)
            core = producer._core
            assert core is not None
            topic = core.accumulator.topic("t")
            assert topic is not None
            assert topic.sets == ("a",), "the route has changed"
            sends += [asyncio.create_task(send(number)) for number in (3, 4)]
            keyed = asyncio.create_task(core.queues_of_keys("t", 10))
            await asyncio.sleep(5)
            assert order == [(0, "b")]
            assert not keyed.done()
            b.down.clear()
            await asyncio.gather(*sends)
            assert {one.broker_set for one in await keyed} == {"a"}
        assert [number for number, _ in order] == list(range(5))
        assert [place for _, place in order] == ["b", "b", "b", "a", "a"]
        assert stored(list(sets))["other"] == 400

    run(scenario())


def test_a_batch_in_doubt_waits_for_its_set_and_is_stored_once() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")

        def dies(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
            brokers.store(batch)
            brokers.die()
            raise Break

        async with sets[0].producer(timeout_s=5) as producer:
            for n in range(8):
                await producer.send("t", f"{n}")
            sets[1].script = dies
            sends = [asyncio.create_task(producer.send("t", f"x{n}")) for n in range(2)]
            await asyncio.sleep(0.001)
            sends += [asyncio.create_task(producer.send("t", f"x{n}")) for n in range(2, 8)]
            await asyncio.sleep(2)
            sets[1].script = None
            sets[1].down.clear()
            results = await asyncio.gather(*sends)
        assert sum(result.is_duplicate for result in results) >= 1
        assert stored(sets) == dict.fromkeys(
            [*(f"{n}" for n in range(8)), *(f"x{n}" for n in range(8))], 1
        )

    run(scenario())


def test_without_idempotence_what_is_in_doubt_goes_elsewhere() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")

        def dies(brokers: ScriptedBrokers, _: Batch) -> BatchResult | None:
            brokers.die()
            raise Break

        async with sets[0].producer(idempotent=False) as producer:
            for n in range(8):
                await producer.send("t", f"{n}")
            sets[1].script = dies
            results = [await producer.send("t", f"x{n}") for n in range(4)]
        assert {result.broker_set for result in results} == {"a"}

    run(scenario())


@pytest.mark.parametrize(
    "code", [wire.DISK_FULL, wire.FLOW_CONTROL, wire.NODE_STOPPED, wire.NOT_LEADER]
)
def test_a_batch_that_one_set_refuses_goes_to_the_other_at_once(code: int) -> None:
    def refuses(brokers: ScriptedBrokers, _: Batch) -> BatchResult | None:
        return refusal(code, retry_after_ms=500) if brokers.name == "b" else None

    async def scenario() -> list[float]:
        sets = cluster("a", "b", script=refuses)
        loop, took_s = asyncio.get_running_loop(), []
        async with sets[0].producer(retries=1) as producer:
            for n in range(30):
                began_s = loop.time()
                await producer.send("t", f"{n}")
                took_s.append(loop.time() - began_s)
        assert stored(sets) == {f"{n}": 1 for n in range(30)}
        assert not sets[1].stored
        return took_s

    assert max(run(scenario())) < 0.1


def test_two_sets_that_ask_to_wait_are_waited_for() -> None:
    async def scenario() -> int:
        asked = [0]

        def busy(_brokers: ScriptedBrokers, _batch: Batch) -> BatchResult | None:
            asked[0] += 1
            is_over = asyncio.get_running_loop().time() > began_s + 2
            return None if is_over else refusal(wire.FLOW_CONTROL, retry_after_ms=100)

        sets = cluster("a", "b", script=busy)
        began_s = asyncio.get_running_loop().time()
        async with sets[0].producer() as producer:
            await producer.send("t", "x")
        assert stored(sets) == {"x": 1}
        return asked[0]

    assert 10 < run(scenario()) < 50, "they do not play ball with it"


def test_a_set_that_does_not_answer_gets_no_more_and_a_slow_one_little() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")
        async with sets[0].producer(timeout_s=30) as producer:
            for n in range(20):
                await producer.send("t", f"{n}")
            sets[1].answer_s = 2.0
            loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
            for n in range(200):
                await producer.send("t", f"slow {n}")
            # A try now and then, each further apart.
            assert loop.time() - began_s < 10
            sets[1].answer_s = 0.001
            await asyncio.sleep(60)
            before = len(sets[1].stored)
            for n in range(40):
                await producer.send("t", f"well {n}")
            assert len(sets[1].stored) - before == 20

            def silent(_brokers: ScriptedBrokers, _batch: Batch) -> BatchResult | None:
                raise Silence

            sets[1].script = silent
            sends = [asyncio.create_task(producer.send("t", f"{n}")) for n in range(4)]
            await asyncio.sleep(1)
            asked = len(sets[1].requests)
            for n in range(50):
                await producer.send("t", f"on {n}")
            assert len(sets[1].requests) == asked
            for send in sends:
                send.cancel()
            sets[1].script = None
            sets[1].die()
            sets[1].down.clear()

    run(scenario())


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_topic_that_is_drained_in_one_set_goes_on_in_the_other(
    is_deleted: bool, is_stale: bool
) -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")
        a, b = sets
        key = key_of("b")
        async with a.producer() as producer:
            for n in range(8):
                await producer.send("t", Message(f"{n}".encode(), ordering_key=key))
                await producer.send("t", f"free {n}")
            if is_stale:
                a.stale["b"] = b.parts()
            if is_deleted:
                del b.topics["t"]
            else:
                b.closed.add("t")
            before = len(b.stored)
            for n in range(8, 40):
                await producer.send("t", Message(f"{n}".encode(), ordering_key=key))
                await producer.send("t", f"free {n}")
                await asyncio.sleep(0.1)
            assert len(b.stored) == before
            # Greetings come to know it.
            a.stale.clear()
            for n in range(40, 80):
                result = await producer.send("t", Message(f"{n}".encode(), ordering_key=key))
                assert (result.broker_set, result.queue_id) == ("a", text_hash(key) % 4)
                await asyncio.sleep(0.2)
        numbers = [one.body for one in (*b.stored, *a.stored) if one.ordering_key]
        assert [int(one) for one in numbers] == list(range(80))

    run(scenario())


def test_a_topic_that_is_extended_to_a_new_set_is_noticed_in_some_seconds() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")
        a, b = sets
        del b.topics["t"]
        a.known = b.known = [a]
        async with a.producer() as producer:
            producer._connection.channels._sets |= {"b0:1": b}  # type: ignore[attr-defined]
            for n in range(8):
                await producer.send("t", f"{n}")
            a.known = b.known = sets
            b.topics["t"] = 4
            for n in range(70):
                await producer.send("t", f"{n}")
                await asyncio.sleep(0.1)
            assert len(b.stored) > 5
            assert (await producer.send("t", "x", queue_id=3, broker_set="b")).broker_set == "b"
            with pytest.raises(IllegalRequest, match="say which"):
                await producer.send("t", "x", queue_id=3)

    run(scenario())


def test_a_topic_that_no_set_takes_messages_for_is_an_error() -> None:
    async def scenario(*, is_deleted: bool) -> None:
        sets = cluster("a", "b")
        async with sets[0].producer() as producer:
            for n in range(8):
                await producer.send("t", f"{n}")
            for brokers in sets:
                brokers.creates_topics = False
                if is_deleted:
                    brokers.topics.clear()
                else:
                    brokers.closed.add("t")
            for key in ("", "k"):
                with pytest.raises((PermissionDenied, TopicNotFound)) as caught:
                    await producer.send("t", Message(b"x", ordering_key=key))
                assert isinstance(caught.value, TopicNotFound) == is_deleted

    run(scenario(is_deleted=False))
    run(scenario(is_deleted=True))


def test_a_set_that_refuses_and_is_gone_does_not_take_the_message_along() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")
        b = sets[1]

        def closes(brokers: ScriptedBrokers, _: Batch) -> BatchResult | None:
            brokers.down.update(brokers.addresses)  # no broker tells the reason
            return refusal(wire.TOPIC_NOT_FOUND)

        async with sets[0].producer() as producer:
            for n in range(8):
                await producer.send("t", f"{n}")
            b.script = closes
            results = [await producer.send("t", f"x{n}") for n in range(4)]
        assert {result.broker_set for result in results} == {"a"}

    run(scenario())


def test_flush_and_close_cover_all_sets() -> None:
    async def scenario() -> None:
        sets = cluster("a", "b")
        for brokers in sets:
            brokers.answer_s = 0.2
        producer = sets[0].producer(linger_ms=1000)
        futures = [await producer.send_async("t", f"{n}", queue_id=n % 4, broker_set="ab"[n % 2])
                   for n in range(40)]  # fmt: skip
        await producer.flush()
        assert all(future.done() for future in futures)
        futures = [await producer.send_async("t", Message(b"x", ordering_key=key_of(name)))
                   for name in "ab"]  # fmt: skip
        await producer.close()
        assert all(future.done() for future in futures)
        assert all(call.is_half_closed for brokers in sets for call in brokers.calls)
        assert [len(brokers.stored) for brokers in sets] == [21, 21]

    run(scenario())


def troubled(dice: random.Random, sets: list[ScriptedBrokers]) -> None:
    """Something happens to one of them."""
    brokers = dice.choice(sets)
    loop = asyncio.get_running_loop()
    match dice.randrange(4):
        case 0:
            brokers.die()
            loop.call_later(dice.uniform(0.01, 1.5), brokers.down.clear)
        case 1:
            brokers.leading = dice.choice(brokers.addresses)
        case 2:
            codes = [wire.DISK_FULL, wire.FLOW_CONTROL, wire.OUTCOME_UNKNOWN, wire.NODE_STOPPED]
            code, until_s = dice.choice(codes), loop.time() + dice.uniform(0, 0.5)

            def script(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
                if loop.time() > until_s:
                    return None
                if code == wire.OUTCOME_UNKNOWN and dice.random() < 0.5:
                    brokers.store(batch)
                return refusal(code, retry_after_ms=10)

            brokers.script = script
        case 3:
            brokers.answer_s = dice.choice([0.001, 0.01, 0.6])


@pytest.mark.parametrize("seed", range(8))
def test_acknowledged_messages_are_stored_once_under_any_faults_of_sets(seed: int) -> None:
    dice = random.Random(seed)

    async def scenario() -> None:
        sets = cluster("a", "b", "c", nodes=2)
        acknowledged: list[tuple[str, str]] = []
        failed: list[str] = []

        async def send(body: str, key: str) -> None:
            try:
                result = await producer.send("t", Message(body.encode(), ordering_key=key))
                acknowledged.append((body, result.broker_set))
            except MqError:
                failed.append(body)

        async with sets[0].producer(timeout_s=6, retries=10) as producer:
            sends = []
            for n in range(300):
                key = f"k{n % 5}" if n % 3 == 0 else ""
                sends.append(asyncio.create_task(send(f"{n}", key)))
                await asyncio.sleep(dice.uniform(0, 0.03))
                if n % 12 == 11:
                    troubled(dice, sets)
            await asyncio.gather(*sends)
        found = stored(sets)
        assert all(count == 1 for count in found.values()), found.most_common(3)
        for body, name in acknowledged:
            [brokers] = [brokers for brokers in sets if brokers.name == name]
            assert body in brokers.bodies()
        assert len(acknowledged) + len(failed) == 300
        assert len(acknowledged) > 250
        for number in range(5):
            of_key = [
                one
                for brokers in sets
                for one in brokers.stored
                if one.ordering_key == f"k{number}"
            ]
            order = [int(one.body) for one in of_key]
            assert order == sorted(order)

    run(scenario())


def test_the_leader_of_a_set_is_asked_of_its_brokers_that_answer() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(("a:1", "b:1", "c:1"))
        connection = Connection(brokers.addresses)
        connected(connection, [brokers])
        [line] = await connection.sets()
        for address, latency_s in (("a:1", 0.001), ("b:1", 0.01), ("c:1", 0.02)):
            line.servers.succeeded(address, latency_s)
        # The fastest is cut off, without a word.
        brokers.frozen.add("a:1")
        brokers.leading = "b:1"
        line.not_leader("a:1")
        with pytest.raises(Unreachable):
            await line.leader(1.0)
        assert await line.leader(1.0) == "b:1"

    run(scenario())
