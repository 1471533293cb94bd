"""Messages that a user sends as one: into which batches they go.

One batch, which is stored as a whole or not at all, whenever one queue can have all of them. Only
ordering keys that lead to different queues part them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mq.client.encode import Encoded, delay_field
from mq.client.messages import Message
from mq.client.producer.accumulator import Accumulator, Outcome
from mq.client.producer.lines import MESSAGE_OVERHEAD_BYTES, Awaited, Kind, Line, TopicLines
from mq.errors import IllegalDelay, MessageTooLarge

# An entry of the broker's log holds a batch as a whole.
BATCH_BYTES_MAX = 4 << 20


class Group(NamedTuple):
    topic: str
    # None: any.
    line: Line | None
    kind: Kind
    messages: list[Encoded]
    # Where they stood among all that were sent together.
    indices: list[int]
    delay: bytes
    priority: int = 0

    def add(
        self, accumulator: Accumulator, futures: Sequence[Awaited], timeout_s: float
    ) -> Outcome:
        return accumulator.add_batch(
            self.topic,
            self.messages,
            self.line,
            futures,
            timeout_s,
            kind=self.kind,
            delay=self.delay,
            priority=self.priority,
        )


def common_delay(messages: Sequence[Message | bytes | str]) -> bytes:
    """Of messages that are sent as one. IllegalDelay: they do not have the same."""
    delays = {delay_field(message) for message in messages}
    if len(delays) > 1:
        raise IllegalDelay("messages of one batch are delivered at the same time: send them apart")
    return delays.pop() if delays else b""


def group_batch(
    accumulator: Accumulator,
    topic_name: str,
    messages: Sequence[Encoded],
    queue_id: int | None,
    delay: bytes = b"",
    priorities: Sequence[int] = (),
    broker_set: str = "",
) -> list[Group] | None:
    """None: the queues of the topic are not known yet. MessageTooLarge when they cannot be one;
    IllegalRequest: a queue without its set is not enough, or there is no such priority.
    `priorities` has that of each message, if any has one.
    """
    if not messages:
        return []
    topic = accumulator.topic(topic_name)
    if topic is None:
        return None
    if queue_id is not None:
        line, every = topic.fixed_line(queue_id, broker_set), list(range(len(messages)))
        groups = [Group(topic_name, line, Kind.FIXED, list(messages), every, delay)]
    else:
        groups = [
            Group(
                topic_name,
                line,
                Kind.ANY if line is None else Kind.KEY,
                [messages[at] for at in indices],
                indices,
                delay,
                priority,
            )
            for (priority, line), indices in _by_line(topic, messages, priorities).items()
        ]
    for group in groups:
        _check_size(group)
    return groups


def _by_line(
    topic: TopicLines, messages: Sequence[Encoded], priorities: Sequence[int]
) -> dict[tuple[int, Line | None], list[int]]:
    """Which messages go to which line; those without a key with the first key of their priority."""
    found: dict[tuple[int, Line | None], list[int]] = {}
    free: dict[int, list[int]] = {}
    firsts: dict[int, Line] = {}
    for at, message in enumerate(messages):
        priority = priorities[at] if priorities and topic.priorities > 1 else 0
        if message[3] is None:
            topic.choice(priority)
            free.setdefault(priority, []).append(at)
        else:
            line = topic.key_line(message[3], priority)
            firsts.setdefault(priority, line)
            found.setdefault((priority, line), []).append(at)
    for priority, indices in free.items():
        together = found.setdefault((priority, firsts.get(priority)), [])
        together += indices
        together.sort()
    return found


def priority_of(message: Message | bytes | str) -> int:
    return message.priority if isinstance(message, Message) else 0


def _check_size(group: Group) -> None:
    size = sum(len(message[0]) + MESSAGE_OVERHEAD_BYTES for message in group.messages)
    if len(group.messages) > 1 and size > BATCH_BYTES_MAX:
        raise MessageTooLarge(
            f"a batch of {len(group.messages)} messages and {size} bytes for topic {group.topic}: "
            f"at most {BATCH_BYTES_MAX} are allowed; send them in parts"
        )
