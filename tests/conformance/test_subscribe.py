"""ConsumerService/Subscribe by one member: what it is given, how it reports, how it goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1.message_pb2 import Message
from tests.conformance.calls import Calls, bodies_in, numbers, until
from tests.conformance.streams import placed

if TYPE_CHECKING:
    from collections.abc import Callable


# -- deliveries ------------------------------------------------------------------------------------


def test_a_member_alone_has_all_queues_and_hears_how_to_stay(subscribe: Any, topic: str) -> None:
    assignment = subscribe().assignment()
    assert [(one.topic, one.queue_id) for one in assignment.queues] == [
        (topic, queue_id) for queue_id in range(4)
    ]
    assert {(one.queue_offset, one.epoch) for one in assignment.queues} == {(0, 0)}
    assert assignment.generation > 0
    assert (assignment.heartbeat_ms, assignment.expires_ms) == (10_000, 30_000)


@pytest.mark.every_client("order in a stream")
def test_every_message_of_every_queue_comes_once_and_in_order(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    for queue_id in range(4):
        calls.send(topic, *numbers(10, queue_id * 100), queue_id=queue_id)
    stream = subscribe()
    stream.assignment()
    found = stream.messages(40)
    for queue_id in range(4):
        bodies = numbers(10, queue_id * 100)
        expected = [(queue_id, at, body) for at, body in enumerate(bodies)]
        assert [one for one in found if one[0] == queue_id] == expected
    # And what comes later, when it comes.
    calls.send(topic, b"later", queue_id=2)
    assert stream.messages(1) == [(2, 10, b"later")]


def test_a_delivery_says_where_it_goes_on_and_what_there_is(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    calls.send(topic, *numbers(5))
    delivery = subscribe().delivery()
    assert (delivery.topic, delivery.queue_id, delivery.epoch) == (topic, 0, 0)
    assert (delivery.next_offset, delivery.start, delivery.end) == (5, 0, 5)


def test_a_delivery_is_no_larger_than_asked_for(calls: Calls, subscribe: Any, topic: str) -> None:
    calls.send(topic, *[bytes(1_000)] * 20)
    stream = subscribe(delivery_bytes=2_500)
    counts = [len(bodies_in(stream.delivery().runs)) for _ in range(10)]
    assert counts == [2] * 10


def test_several_topics_come_on_one_stream(
    calls: Calls, subscribe: Any, topic: str, new_name: Callable[[], str]
) -> None:
    other = calls.create(new_name(), 1)
    calls.send(topic, b"one", queue_id=3)
    calls.send(other, b"other")
    wanted = [pb.Subscription(topic=topic), pb.Subscription(topic=other)]
    stream = subscribe(subscriptions=wanted)
    assert len(stream.assignment().queues) == 5
    found = {
        (one.topic, one.queue_id, *bodies_in(one.runs))
        for one in (stream.delivery(), stream.delivery())
    }
    assert found == {(topic, 3, b"one"), (other, 0, b"other")}


# -- where it starts -------------------------------------------------------------------------------


def test_a_new_group_starts_where_it_says(calls: Calls, subscribe: Any, topic: str) -> None:
    first = calls.send(topic, *numbers(3))
    while time.time() * 1000 < first.stored_at_ms + 3:
        time.sleep(0.001)
    calls.send(topic, *numbers(3, 3))
    for start, at_ms, expected in (
        (pb.START_LATEST, 0, 6),
        (pb.START_EARLIEST, 0, 0),
        (pb.START_TIMESTAMP, first.stored_at_ms + 1, 3),
        (pb.START_TIMESTAMP, 1 << 60, 6),
    ):
        stream = subscribe(start_position=start, start_at_ms=at_ms)
        assert stream.assigned()[0].queue_offset == expected
        stream.leave()
        calls("DeleteGroup", group=until(lambda: forgotten(calls, topic)))


def forgotten(calls: Calls, topic: str) -> str:
    """The group of the topic, when it has no members."""
    found = [one for one in calls("ListGroups").groups if topic in one.topics and not one.members]
    return found[0].group if found else ""


def test_a_group_that_has_not_begun_misses_nothing_when_it_comes_again(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    """Its place was fixed when it was first seen, though it never reported anything."""
    calls.send(topic, b"before")
    stream = subscribe(start_position=pb.START_LATEST)
    stream.assignment()
    stream.leave()
    calls.send(topic, b"meanwhile")
    again = subscribe(start_position=pb.START_LATEST)
    assert again.messages(1) == [(0, 1, b"meanwhile")]


# -- progress --------------------------------------------------------------------------------------


def test_progress_is_committed_and_seen_by_operators(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(10))
    stream = subscribe()
    stream.messages(10)
    until(lambda: calls.committed(group, topic) == dict.fromkeys(range(4), 0), "it has begun")
    assert calls.lag(group) == 10
    stream.progress(0, 7)
    until(lambda: calls.lag(group) == 3, "it is committed")
    assert calls.committed(group, topic)[0] == 7
    described = calls("DescribeGroup", group=group)
    assert (described.summary.lag, described.summary.members) == (3, 1)
    (queue,) = [one for one in described.queues if one.queue_id == 0]
    assert (queue.committed, queue.start, queue.end, queue.lag) == (7, 0, 10, 3)
    assert queue.member_id == "m"
    (member,) = described.members
    assert (member.member_id, member.is_streaming, member.queues) == ("m", True, 4)
    assert member.address
    stream.progress(0, 10)
    until(lambda: calls.lag(group) == 0, "nothing is left")


def test_a_group_goes_on_where_its_progress_was(calls: Calls, subscribe: Any, topic: str) -> None:
    calls.send(topic, *numbers(10))
    stream = subscribe()
    stream.messages(10)
    stream.progress(0, 6)
    stream.leave()
    # At once: what was reported counts before it is committed.
    again = subscribe(member_id="another")
    assert again.assigned()[0].queue_offset == 6
    assert again.messages(4) == [(0, at, body) for at, body in enumerate(numbers(4, 6), start=6)]


def test_progress_beyond_what_was_delivered_is_refused(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(3))
    stream = subscribe()
    stream.messages(3)
    stream.progress(0, 4)
    _, refusal = stream.refusal()
    assert refusal.code == "ILLEGAL_OFFSET"
    assert topic in refusal.text
    until(lambda: calls.committed(group, topic), "it has begun")
    assert calls.committed(group, topic)[0] == 0


def test_progress_that_is_late_or_not_the_members_is_passed_over(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(5))
    stream = subscribe()
    stream.messages(5)
    stream.progress(0, 3)
    stream.progress(0, 1)  # older than what is known
    stream.progress(0, 5, epoch=7)  # of another epoch
    stream.progress(99, 5)  # of no queue
    stream.progress(0, 4)
    until(lambda: calls.committed(group, topic).get(0) == 4, "it is committed")
    assert set(calls.committed(group, topic)) == {0, 1, 2, 3}


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.every_client("a stream that rests")
def test_no_more_is_sent_than_the_clients_cache_has_room_for(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    calls.send(topic, *numbers(100))
    stream = subscribe(cache_messages=10)
    stream.assignment()
    given = done = 0
    while given < 100:
        found = stream.messages(1)
        assert [queue_offset for _, queue_offset, _ in found] == list(
            range(given, given + len(found))
        )
        given += len(found)
        assert given - done <= 10
        if given - done == 10 or given == 100:
            stream.silence(0.05)
            done += 7
            stream.progress(0, min(done, given))


def test_the_cache_is_a_limit_of_each_queue(calls: Calls, subscribe: Any, topic: str) -> None:
    for queue_id in (0, 1):
        calls.send(topic, *numbers(20), queue_id=queue_id)
    stream = subscribe(cache_messages=5)
    found = stream.messages(10)
    assert sorted(queue_id for queue_id, _, _ in found) == [0] * 5 + [1] * 5
    stream.silence(0.1)
    stream.progress(1, 5)
    assert {queue_id for queue_id, _, _ in stream.messages(5)} == {1}


def test_bytes_in_the_cache_are_limited_too(calls: Calls, subscribe: Any, topic: str) -> None:
    calls.send(topic, *[bytes(1_000)] * 20)
    stream = subscribe(cache_bytes=5_000)
    # The last one goes out while there is any room.
    assert 5 <= len(stream.messages(5)) <= 6
    stream.silence(0.1)
    stream.progress(0, 4)
    assert stream.messages(1)


@pytest.mark.every_client("large messages")
def test_a_message_larger_than_the_cache_comes_alone(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    calls.send(topic, bytes(100_000), bytes(100_000))
    stream = subscribe(cache_bytes=10, delivery_bytes=10)
    assert len(stream.messages(1)) == 1
    stream.silence(0.1)
    stream.progress(0, 1)
    assert stream.messages(1)[0][1] == 1


# -- filters ---------------------------------------------------------------------------------------


def tagged(count: int, tags: str) -> list[Message]:
    return [
        Message(body=b"%d" % at, tag=tags[at % len(tags)], properties={"n": str(at)})
        for at in range(count)
    ]


@pytest.mark.parametrize("wanted", [{"tags": "a || c"}, {"sql": "TAGS IN ('a', 'c')"}])
def test_a_filter_delivers_what_it_lets_through_and_tells_of_the_rest(
    calls: Calls, subscribe: Any, topic: str, group: str, wanted: dict[str, str]
) -> None:
    calls.send(topic, messages=tagged(12, "abcd"))
    stream = subscribe(filter=wanted)
    found: list[tuple[int, int, bytes]] = []
    next_offset = 0
    while next_offset < 12:
        delivery = stream.delivery()
        found += placed(delivery)
        next_offset = delivery.next_offset
    assert [at for _, at, _ in found] == [at for at in range(12) if at % 2 == 0]
    stream.progress(0, next_offset)
    until(lambda: calls.committed(group, topic).get(0) == 12, "the group is through")


def test_a_queue_of_which_nothing_passes_can_be_finished(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, messages=tagged(50, "ab"))
    stream = subscribe(filter={"tags": "none"})
    delivery = stream.delivery()
    assert (bodies_in(delivery.runs), delivery.next_offset) == ([], 50)
    stream.progress(0, 50)
    until(lambda: calls.committed(group, topic).get(0) == 50)
    calls.send(topic, messages=[Message(tag="none")])
    assert stream.messages(1)[0][1] == 50


# -- seek and reset --------------------------------------------------------------------------------


def test_a_seek_starts_a_new_epoch_from_there(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(10))
    stream = subscribe()
    stream.messages(10)
    stream.progress(0, 10)
    stream.seek(0, 4)
    queue = stream.assigned()[0]
    assert (queue.queue_offset, queue.epoch) == (4, 1)
    delivery = stream.delivery()
    assert delivery.epoch == 1
    assert placed(delivery)[0][1] == 4
    until(lambda: calls.committed(group, topic).get(0) == 4, "the group is there, too")
    stream.progress(0, 9)  # of the epoch before: void
    stream.progress(0, 6, epoch=1)
    until(lambda: calls.committed(group, topic).get(0) == 6, "what counts is committed")


def test_a_seek_makes_room_in_the_cache(calls: Calls, subscribe: Any, topic: str) -> None:
    calls.send(topic, *numbers(20))
    stream = subscribe(cache_messages=5)
    stream.messages(5)
    stream.seek(0, 15)
    assert [at for _, at, _ in stream.messages(5)] == [15, 16, 17, 18, 19]


def test_a_seek_beyond_the_end_is_refused_and_moves_nothing(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(3))
    stream = subscribe()
    stream.messages(3)
    until(lambda: calls.committed(group, topic), "it has begun")
    stream.seek(0, 4)
    _, refusal = stream.refusal()
    assert refusal.code == "ILLEGAL_OFFSET"
    assert topic in refusal.text
    assert calls.committed(group, topic)[0] == 0


def test_a_seek_in_a_queue_of_another_member_is_late_and_moves_nothing(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    stream = subscribe()
    stream.assignment()
    stream.seek(9, 0)
    calls.send(topic, b"x")
    assert stream.messages(1) == [(0, 0, b"x")]
    assert 9 not in calls.committed(group, topic)


def test_a_reset_moves_members_at_once(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    calls.send(topic, *numbers(10))
    stream = subscribe()
    stream.messages(10)
    stream.progress(0, 10)
    until(lambda: calls.committed(group, topic).get(0) == 10)
    answer = calls("ResetOffsets", group=group, topic=topic, kind=pb.OFFSET_EARLIEST)
    assert [one.queue_offset for one in answer.before] == [10, 0, 0, 0]
    queue = stream.assigned()[0]
    assert (queue.queue_offset, queue.epoch) == (0, 1)
    assert [at for _, at, _ in stream.messages(10)] == list(range(10))
    stream.progress(0, 10)  # of the time before the reset: void
    stream.progress(0, 2, epoch=1)
    until(lambda: calls.committed(group, topic).get(0) == 2)


# -- topics that change ----------------------------------------------------------------------------


def test_a_resume_of_what_was_not_redirected_is_late_and_moves_nothing(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    calls.send(topic, *numbers(3))
    member = subscribe(takes_redirects=True, zone="far-away")
    assert [body for _, _, body in member.messages(3)] == numbers(3)
    for queue_id, queue_offset, epoch in ((0, 1, 0), (0, 1 << 40, 0), (0, 0, 7), (99, 0, 0)):
        position = pb.QueuePosition(
            topic=topic, queue_id=queue_id, queue_offset=queue_offset, epoch=epoch
        )
        resume = pb.Resume(positions=[position])
        member.send(pb.SubscribeRequest(resume=resume))
    calls.send(topic, b"next")
    assert member.messages(1) == [(0, 3, b"next")]


def test_a_topic_that_grows_brings_its_new_queues_from_their_beginning(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    stream = subscribe(start_position=pb.START_LATEST)
    assert len(stream.assignment().queues) == 4
    calls("AlterTopic", topic=topic, read_queues=6, write_queues=6)
    calls.send(topic, b"first", queue_id=5)
    stream.until_assigned(0, 1, 2, 3, 4, 5)
    assert stream.messages(1) == [(5, 0, b"first")]


def test_a_topic_that_goes_takes_its_queues_along(calls: Calls, subscribe: Any, topic: str) -> None:
    calls.send(topic, *numbers(3))
    stream = subscribe()
    stream.messages(3)
    calls("DeleteTopic", topic=topic)
    stream.until_assigned()
    stream.release(0, 1, 2, 3)
    calls.create(topic, 2)
    calls.send(topic, b"anew")
    stream.until_assigned(0, 1)
    assert stream.messages(1) == [(0, 3, b"anew")]
