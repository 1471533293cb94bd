"""Queues that are read from another broker: pulled under the stream's epoch, and back by Resume."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.client.consumer import set_stream as follower_reads_module
from mq.client.messages import Sql
from mq.errors import Internal, MqError, NotLeader, Unreachable
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.consumer_pb2 import PullRequest, PullResponse, Redirect
from tests.unit.client.consumer.deliveries import TOPIC, assignment, delivery, ref
from tests.unit.client.consumer.scripted_session import ScriptedSession, run, shorten_waits, until

if TYPE_CHECKING:
    from tests.unit.client.consumer.scripted_broker import ScriptedCall

OTHER = "follower:1"


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


def redirect(
    queue_offset: int, *, queue_id: int = 0, epoch: int = 0, address: str = OTHER
) -> Redirect:
    return Redirect(
        topic=TOPIC, queue_id=queue_id, queue_offset=queue_offset, epoch=epoch, address=address
    )


class RedirectedSession(ScriptedSession):
    """The other broker has the messages of a queue up to `end`, and sends readers back there."""

    def __init__(self, end: int, *, sends_back: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.end = end
        self.sends_back = sends_back
        self.pulls: list[tuple[str, PullRequest]] = []
        # What a pull is answered with before anything else.
        self.next_answers: list[PullResponse | MqError] = []
        self.connection.pull = self.answer

    def answer(self, address: str, request: PullRequest) -> PullResponse:
        self.pulls.append((address, request))
        if self.next_answers:
            answer = self.next_answers.pop(0)
            if isinstance(answer, MqError):
                raise answer
            return answer
        return self.found(request, 10)

    def found(self, request: PullRequest, count: int) -> PullResponse:
        first = request.queue_offset
        last = min(first + min(count, request.messages_max), self.end)
        is_end = last == self.end and self.sends_back
        return PullResponse(
            status=wire.PULL_FOUND if last > first else wire.PULL_END,
            next_offset=last,
            end=self.end,
            read_from="one:1" if is_end else "",
            runs=delivery(0, range(first, last)).runs if last > first else [],
        )

    async def finish(self, count: int) -> list[int]:
        """One after the other."""
        found = []
        for _ in range(count):
            (taken,) = await self.take(1)
            self.buffer.done([taken])
            found.append(taken.message.queue_offset)
        return found

    async def begin(self, queue_offset: int = 0) -> ScriptedCall:
        call = await self.join((0, queue_offset))
        call.send(redirect(queue_offset))
        return call


async def resumed(call: ScriptedCall) -> tuple[int, int]:
    """Where, and under which epoch. What else is said comes before."""
    while True:
        request = await asyncio.wait_for(call.requests.get(), 10)
        if request.HasField("resume"):
            (place,) = request.resume.positions
            return place.queue_offset, place.epoch
        assert request.WhichOneof("kind") in ("progress", "alive"), request


def test_a_redirected_queue_is_pulled_there_until_it_is_sent_back() -> None:
    async def story() -> None:
        scripted = RedirectedSession(25, zone="z")
        call = await scripted.join((0, 3))
        call.send(delivery(0, range(3, 5)), redirect(5))
        assert await scripted.finish(22) == list(range(3, 25))
        assert await resumed(call) == (25, 0)
        call.send(delivery(0, [25]))
        assert await scripted.finish(1) == [25]
        for address, request in scripted.pulls:
            assert address == OTHER
            assert (request.topic, request.queue_id) == (TOPIC, 0)
            assert request.any_replica
            assert request.zone == "z"
            assert request.wait_ms == 1_000
        assert [request.queue_offset for _, request in scripted.pulls] == [5, 15]
        await scripted.session.close()

    run(story())


def test_the_client_says_that_it_understands() -> None:
    async def story() -> None:
        scripted = ScriptedSession(zone="z")
        await scripted.session.start()
        start = await (await scripted.connection.next_call()).started()
        assert (start.takes_redirects, start.zone) == (True, "z")
        await scripted.session.close()

    run(story())


def test_progress_is_reported_by_the_stream_meanwhile() -> None:
    async def story() -> None:
        scripted = RedirectedSession(1_000, sends_back=False)
        call = await scripted.begin()
        await scripted.finish(5)
        reported = 0
        while reported < 5:
            reported = (await call.progress())[0]
        await scripted.session.commit()
        assert scripted.connection.committed() == [{ref(0): 5}]
        await scripted.session.close()

    run(story())


def test_the_filter_of_the_topic_goes_along_and_what_it_leaves_out_is_passed_over() -> None:
    async def story() -> None:
        scripted = RedirectedSession(30)
        object.__setattr__(scripted.session.options, "filters", {TOPIC: Sql("a > 1")})
        scripted.next_answers = [PullResponse(status=wire.PULL_END, next_offset=20, end=30)]
        call = await scripted.begin()
        assert await scripted.finish(10) == list(range(20, 30))
        assert await resumed(call) == (30, 0)
        assert {request.filter.sql for _, request in scripted.pulls} == {"a > 1"}
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize(
    "odd",
    [
        PullResponse(status=wire.PULL_TOO_SMALL, next_offset=50, start=50, end=60),
        PullResponse(status=wire.PULL_TOO_LARGE, next_offset=0, end=0),
        PullResponse(status=wire.PULL_END, next_offset=3, end=3),
        Unreachable("it is gone"),
        NotLeader(None, None),
        Internal("it has a problem"),
    ],
)
def test_an_unexpected_response_resumes_the_stream_at_the_next_wanted_message(odd: Any) -> None:
    async def story() -> None:
        scripted = RedirectedSession(100)
        # Ten messages come, and then this.
        call = await scripted.join((0, 0))
        first = scripted.found(PullRequest(messages_max=10), 10)
        scripted.next_answers = [first, odd]
        call.send(redirect(0))
        assert await scripted.finish(10) == list(range(10))
        assert await resumed(call) == (10, 0)
        assert len(scripted.pulls) == 2
        await scripted.session.close()

    run(story())


def test_a_mistake_of_ours_does_not_stop_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        scripted = RedirectedSession(100)

        def fail(*_: object) -> PullResponse:
            raise ZeroDivisionError

        scripted.connection.pull = fail
        call = await scripted.begin()
        assert await resumed(call) == (0, 0)
        await scripted.session.close()

    run(story())
    assert "ZeroDivisionError" in caplog.text


def test_repeated_redirects_to_a_dead_broker_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []

    def no_time(attempt: int) -> float:
        waits.append(attempt)
        return 0.0

    monkeypatch.setattr(follower_reads_module, "back_off_s", no_time)

    async def story() -> None:
        scripted = RedirectedSession(100)
        scripted.next_answers = [Unreachable("gone")] * 3
        call = await scripted.begin()
        for _ in range(3):
            assert await resumed(call) == (0, 0)
            call.send(redirect(0))
        await scripted.finish(10)
        assert waits == [1, 2]
        await scripted.session.close()

    run(story())


def test_the_cache_is_not_overfilled() -> None:
    async def story() -> None:
        scripted = RedirectedSession(1_000, cache_messages=20)
        await scripted.begin()
        await until(lambda: scripted.buffer.cached_messages[ref(0)] == 20)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(scripted.pulls) == 2
        # Not for a few: who asks for single messages asks all the time.
        taken = await scripted.take(20)
        scripted.buffer.done(taken[:9])
        await asyncio.sleep(0.02)
        assert len(scripted.pulls) == 2
        scripted.buffer.done(taken[9:10])
        await until(lambda: len(scripted.pulls) == 3)
        assert scripted.pulls[2][1].messages_max == 10
        scripted.buffer.done(taken[10:])
        found: list[int] = []
        while len(found) < 60:
            assert sum(scripted.buffer.cached_messages.values()) <= 20
            found += await scripted.finish(1)
        assert found == list(range(20, 80))
        await scripted.session.close()

    run(story())


def test_bytes_count_as_well() -> None:
    async def story() -> None:
        scripted = RedirectedSession(1_000, cache_bytes=200)  # of 10 bytes each
        await scripted.begin()
        await until(lambda: scripted.buffer.cached_messages[ref(0)] == 20)
        await asyncio.sleep(0.02)
        assert [request.bytes_max for _, request in scripted.pulls] == [200, 100]
        await scripted.finish(10)
        await until(lambda: len(scripted.pulls) == 3)
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("how", ["revoked", "moved", "sought", "broken"])
def test_a_follower_read_ends_quietly_when_the_assignment_has_changed(how: str) -> None:
    async def story() -> None:
        scripted = RedirectedSession(10_000, sends_back=False)
        call = await scripted.begin()
        await scripted.finish(50)
        match how:
            case "revoked":
                call.send(assignment((1, 0)))
            case "moved":
                call.send(assignment((0, 4, 1)))
            case "sought":
                await scripted.session.seek({ref(0): 4})
            case "broken":
                call.end()
                again = await scripted.connection.next_call()
                start = await again.started()
                at = start.positions[0].queue_offset
                assert at >= 50
                # Epochs are counted anew: what is pulled must not look like the stream's.
                again.send(assignment((0, at)))
        pulls = -1
        while len(scripted.pulls) != pulls:
            pulls = len(scripted.pulls)
            await asyncio.sleep(0.02)
        said = []
        while not call.requests.empty():
            said.append(call.requests.get_nowait().WhichOneof("kind"))
        assert "resume" not in said
        if how == "moved":
            assert scripted.buffer.done_offsets()[ref(0)] == 4
            call.send(delivery(0, [4], epoch=1))
            assert await scripted.finish(1) == [4]
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("how", ["revoked", "broken", "closed"])
def test_a_read_that_is_not_needed_is_cancelled(how: str) -> None:
    async def story() -> None:
        scripted = RedirectedSession(100)
        asked: list[asyncio.Event] = []

        async def hang(*_: object, **__: object) -> bytes:
            asked.append(over := asyncio.Event())
            try:
                await asyncio.sleep(3_600)
            finally:
                over.set()
            raise AssertionError

        monkeypatch.setattr(scripted.connection, "ask", hang)
        call = await scripted.begin()
        await until(lambda: len(asked) == 1)
        match how:
            case "revoked":
                call.send(assignment())
            case "broken":
                call.end()
            case "closed":
                await scripted.session.close()
        await asyncio.wait_for(asked[0].wait(), 1.0)
        await scripted.session.close()

    with pytest.MonkeyPatch.context() as monkeypatch:
        run(story())


def test_pulled_messages_have_the_epoch_of_their_redirect() -> None:
    async def story() -> None:
        scripted = RedirectedSession(10)
        call = await scripted.join((0, 0, 3))
        call.send(redirect(0, epoch=3))
        assert await scripted.finish(10) == list(range(10))
        assert await resumed(call) == (10, 3)
        # One of another epoch is late.
        call.send(redirect(4, epoch=2), delivery(0, [10], epoch=3))
        assert await scripted.finish(1) == [10]
        await scripted.session.close()

    run(story())


def test_other_queues_and_new_members_do_not_disturb_it() -> None:
    async def story() -> None:
        scripted = RedirectedSession(40, cache_messages=10)
        call = await scripted.begin()
        await scripted.finish(5)
        call.send(assignment((0, 0), (1, 0), generation=2), delivery(1, [0]))
        found = await scripted.finish(36)
        assert sorted(found) == sorted([*range(5, 40), 0])
        assert await resumed(call) == (40, 0)
        await scripted.session.close()

    run(story())


def test_a_redirect_of_a_redirect_goes_on_from_there() -> None:
    async def story() -> None:
        scripted = RedirectedSession(30, sends_back=False, cache_messages=4)
        call = await scripted.begin()
        assert await scripted.finish(4) == [0, 1, 2, 3]
        await until(lambda: scripted.buffer.cached_messages[ref(0)] == 4)
        call.send(redirect(8, address="third:1"))
        assert await scripted.finish(12) == list(range(4, 16))
        assert [one for one, _ in scripted.pulls][-1] == "third:1"
        await scripted.session.close()

    run(story())
