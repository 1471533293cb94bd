"""Messages that were polled are done one by one or together, in any order, each once."""

from __future__ import annotations

import copy
import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from mq.client.consumer.consumer import PolledMessages
from mq.client.consumer.prefetch_queue import InFlight, PrefetchQueue
from mq.client.decode import Decoder, parse_subscribe_response
from mq.client.messages import QueueRef
from mq.wire.v1.consumer_pb2 import Delivery
from mq.wire.v1.message_pb2 import Message, Origin
from tests.unit.client.consumer.deliveries import SET, TOPIC, response, run
from tests.unit.client.consumer.manual_buffer import ManualBuffer


def polled_messages() -> PolledMessages:
    buffered = ManualBuffer()
    buffered.open_set()
    return PolledMessages(buffered.buffer)


def polled_queue(topic: str, count: int = 1) -> tuple[PrefetchQueue, InFlight]:
    """A queue with one delivery of so many messages, all of them taken."""
    messages = [Message(body=b"x", origin=Origin(topic=TOPIC)) for _ in range(count)]
    runs = [run(messages, 0, log_offset=len(topic))]
    content = Delivery(topic=topic, next_offset=count, runs=runs)
    _, delivered = parse_subscribe_response(response(content))
    queue = PrefetchQueue(QueueRef(topic, 0, SET), 0, 0)
    queue.add(delivered, count)
    taken = queue.take(count, Decoder())
    assert taken is not None
    return queue, taken


def test_a_polled_message_and_one_that_came_back_are_two() -> None:
    polled = polled_messages()
    first, came_back = polled_queue(TOPIC), polled_queue("%RETRY%g")
    polled.add([first[1], came_back[1]])
    assert {one[1].message.topic for one in (first, came_back)} == {TOPIC}
    polled.done([came_back[1].message])
    assert [one[0].done_to for one in (first, came_back)] == [0, 1]
    assert polled.take_back([first[1].message, came_back[1].message]) == [first[1]]


@given(st.permutations(range(7)), st.lists(st.booleans(), min_size=7, max_size=7))
def test_polled_messages_are_done_in_any_order_and_each_once(
    order: list[int], is_copied: list[bool]
) -> None:
    polled = polled_messages()
    queue, taken = polled_queue(TOPIC, 7)
    polled.add([taken])
    undone = set(range(7))
    for at in order:
        message = copy.copy(taken.messages[at]) if is_copied[at] else taken.messages[at]
        (single,) = polled.take_back([message])
        assert [one.queue_offset for one in single.messages] == [at]
        assert polled.take_back([message]) == []
        queue.finish(single)
        undone.discard(at)
        assert queue.done_to == min(undone, default=7)
    assert queue.running == 0


def test_messages_that_are_not_done_yet_are_done_together() -> None:
    polled = polled_messages()
    queue, taken = polled_queue(TOPIC, 6)
    polled.add([taken])
    polled.done([taken.messages[3]])
    assert (queue.done_to, queue.running) == (0, 5)
    polled.all_done()
    assert (queue.done_to, queue.running) == (6, 0)


def test_a_message_that_stood_there_before_the_topic_was_created_again_is_another() -> None:
    polled = polled_messages()
    queue, taken = polled_queue(TOPIC)
    polled.add([taken])
    polled.done([dataclasses.replace(taken.message, message_id=f"{SET}:1")])
    assert queue.done_to == 0


def test_a_batch_is_done_by_one_call() -> None:
    polled = polled_messages()
    queue, taken = polled_queue(TOPIC, 6)
    polled.add([taken])
    batch = polled.batch(taken, Decoder())
    assert (len(batch), list(batch.offsets), batch.bodies) == (6, list(range(6)), [b"x"] * 6)
    polled.done([batch[2]])
    assert queue.done_to == 0
    batch.ack()
    batch.ack()
    assert (queue.done_to, queue.running) == (6, 0)
