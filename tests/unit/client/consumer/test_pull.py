"""Where a PullConsumer reads: at the leader, or where that one says, and back at any doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mq.client.consumer.pull import PullConsumer, PullResult, PullStatus
from mq.client.messages import QueueRef
from mq.errors import IllegalConfig, IllegalRequest, NotLeader, TopicNotFound, Unreachable
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.message_pb2 import Message
from tests.unit.client.consumer.deliveries import run as delivered_run
from tests.unit.client.fake_channels import FakeChannels
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable

END, TOO_LARGE = wire.PULL_END, wire.PULL_TOO_LARGE


def puller(
    answer: Callable[[str, str, Any], Any], *sets: str, **options: Any
) -> tuple[PullConsumer, FakeChannels]:
    brokers = FakeChannels(answer, *sets)
    brokers.have("t", *brokers.sets)
    made = PullConsumer(f"{brokers.sets[0]}:1", "g", **options)
    brokers.replace_those_of(made._connection)
    return made, brokers


def found(body: bytes = b"x", read_from: str = "") -> wire.PullResponse:
    stored = delivered_run([Message(body=body)], 3, log_offset=0)
    return wire.PullResponse(next_offset=4, end=9, runs=[stored], read_from=read_from)


def nothing(status: wire.PullStatus = END, read_from: str = "", end: int = 0) -> wire.PullResponse:
    return wire.PullResponse(status=status, next_offset=end, end=end, read_from=read_from)


class Script:
    """By broker, what it answers next; the last one again and again."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = answers

    def __call__(self, name: str, _: str, __: Any) -> Any:
        answers = self._answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def pull(consumer: PullConsumer, wait_ms: int = 0) -> PullResult:
    return await consumer.pull("t", 0, 3, wait_ms=wait_ms)


def asked(brokers: FakeChannels) -> list[str]:
    return [name for name, _ in brokers.asked("Pull")]


def test_a_queue_is_read_where_the_leader_says_until_it_is_sent_back() -> None:
    async def scenario() -> None:
        script = Script(a=[found(read_from="f:1"), found()], f=[found(), found(read_from="a:1")])
        consumer, brokers = puller(script, "a", zone="east")
        for _ in range(4):
            assert (await pull(consumer)).messages[0].queue == QueueRef("t", 0, "a")
        assert asked(brokers) == ["a", "f", "f", "a"]
        assert {(one.any_replica, one.zone) for _, one in brokers.asked("Pull")} == {(True, "east")}
        assert consumer._reads._addresses == {}

    run(scenario())


def test_only_one_queue_is_read_elsewhere() -> None:
    async def scenario() -> None:
        consumer, brokers = puller(Script(a=[found(read_from="f:1"), found()], f=[found()]), "a")
        await pull(consumer)
        await consumer.pull("t", 1, 3)
        assert asked(brokers) == ["a", "a"]

    run(scenario())


@pytest.mark.parametrize(
    "trouble",
    [Unreachable("reset"), NotLeader(None, None), TopicNotFound("not yet"), b"\xff", None],
)
def test_the_leader_is_asked_when_another_one_fails(trouble: Any) -> None:
    async def scenario() -> None:
        script = Script(a=[found(read_from="f:1"), found(b"leader")], f=[trouble])
        consumer, brokers = puller(script, "a")
        await pull(consumer)
        assert [one.body for one in (await pull(consumer, 500)).messages] == [b"leader"]
        assert asked(brokers) == ["a", "f", "a"]
        assert (await pull(consumer)).messages
        assert asked(brokers)[3:] == ["a"]

    run(scenario())


@pytest.mark.parametrize("odd", [nothing(TOO_LARGE), nothing(read_from="a:1")])
def test_only_the_leader_says_that_a_position_is_outside_of_the_queue(
    odd: wire.PullResponse,
) -> None:
    async def scenario() -> None:
        script = Script(a=[found(read_from="f:1"), nothing(END, end=77)], f=[odd])
        consumer, brokers = puller(script, "a")
        await pull(consumer)
        result = await pull(consumer)
        assert (result.status, result.end) == (PullStatus.END, 77)
        assert asked(brokers) == ["a", "f", "a"]

    run(scenario())


def test_a_follower_with_nothing_new_is_believed_and_stays() -> None:
    async def scenario() -> None:
        script = Script(a=[found(read_from="f:1")], f=[nothing(end=5), found()])
        consumer, brokers = puller(script, "a")
        await pull(consumer)
        assert (await pull(consumer)).status is PullStatus.END
        assert (await pull(consumer)).messages
        assert asked(brokers) == ["a", "f", "f"]

    run(scenario())


def test_brokers_that_redirect_to_each_other_are_asked_a_few_times() -> None:
    async def scenario() -> None:
        def answer(name: str, _: str, request: Any) -> Any:
            if not request.any_replica:
                return nothing(end=5)
            return nothing(read_from="f:1" if name == "a" else "a:1")

        consumer, brokers = puller(answer, "a")
        assert (await pull(consumer)).end == 5
        assert asked(brokers) == ["a", "f", "a", "a"]

    run(scenario())


def test_without_read_followers_the_leader_is_asked() -> None:
    async def scenario() -> None:
        consumer, brokers = puller(Script(a=[found()]), "a", read_followers=False)
        await pull(consumer)
        assert not any(one.any_replica for _, one in brokers.asked("Pull"))

    run(scenario())


def test_queues_of_several_sets_are_distinguished() -> None:
    async def scenario() -> None:
        def answer(name: str, method: str, request: Any) -> Any:
            if method == "Pull":
                return found(name.encode())
            if method == "CommitOffsets":
                return wire.CommitOffsetsResponse()
            at = {"a": 5, "b": 6}[name]
            places = [wire.QueuePosition(topic="t", queue_id=1, queue_offset=at)]
            if method == "QueryOffsets":
                return wire.QueryOffsetsResponse(positions=places)
            assert request.topic == "t"
            return wire.FindOffsetsResponse(positions=places)

        consumer, brokers = puller(answer, "a", "b")
        queues = await consumer.queues("t")
        assert queues == [QueueRef("t", at, name) for name in "ab" for at in range(2)]
        for name in "ab":
            result = await consumer.pull("t", 0, 3, broker_set=name)
            assert [(one.body, one.broker_set) for one in result.messages] == [
                (name.encode(), name)
            ]
        with pytest.raises(IllegalRequest, match="is in a, b: say which broker set"):
            await consumer.pull("t", 0, 3)
        with pytest.raises(IllegalRequest, match="no broker set 'x'; there are: a, b"):
            await consumer.pull("t", 0, 3, broker_set="x")
        places = {QueueRef("t", 1, "a"): 5, QueueRef("t", 1, "b"): 6}
        assert await consumer.find_offsets("t", "latest") == places
        assert await consumer.committed() == places
        await consumer.commit(places)
        committed = {name: request.positions for name, request in brokers.asked("CommitOffsets")}
        assert {name: one[0].queue_offset for name, one in committed.items()} == {"a": 5, "b": 6}
        with pytest.raises(IllegalRequest, match="is in a, b"):
            await consumer.commit({("t", 1): 5})

    run(scenario())


@pytest.mark.parametrize("first", ["commit", "committed"])
def test_a_new_consumer_looks_up_the_set_of_a_queue(first: str) -> None:
    async def scenario() -> None:
        brokers = FakeChannels(lambda *_: wire.QueryOffsetsResponse(), "a", "b")
        brokers.have("t", "a", "b")
        consumer = PullConsumer("a:1", "g")
        brokers.replace_those_of(consumer._connection)
        if first == "commit":
            await consumer.commit({QueueRef("t", 1, "b"): 6})
        else:
            await consumer.committed([QueueRef("t", 1, "b")])
        # Brokers of set a would have taken it for a queue of their own.
        assert [name for name, *_ in brokers.calls] == ["b"]

    run(scenario())


def test_offsets_without_a_group_make_no_sense() -> None:
    async def scenario() -> None:
        with pytest.raises(IllegalConfig):
            await PullConsumer("a:1").committed()

    run(scenario())
