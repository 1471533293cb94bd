"""Messages that a user sends as one: into which batches they go.

One batch, which is stored as a whole or not at all, whenever one queue can have all of them. Only
ordering keys that lead to different queues part them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mq.client.accumulator import Accumulator, Outcome
from mq.client.encode import Encoded, delay_field
from mq.client.lines import MESSAGE_OVERHEAD_BYTES, Awaited, Kind
from mq.client.model import Message
from mq.errors import IllegalDelay, MessageTooLarge

# An entry of the broker's log holds a batch as a whole.
BATCH_BYTES_MAX = 4 << 20


class Group(NamedTuple):
    topic: str
    # None: any.
    queue_id: int | None
    kind: Kind
    messages: list[Encoded]
    # Where they stood among all that were sent together.
    indices: list[int]
    delay: bytes

    def add(
        self, accumulator: Accumulator, futures: Sequence[Awaited], timeout_s: float
    ) -> Outcome:
        return accumulator.add_batch(
            self.topic,
            self.messages,
            self.queue_id,
            futures,
            timeout_s,
            kind=self.kind,
            delay=self.delay,
        )


def common_delay(messages: Sequence[Message | bytes | str]) -> bytes:
    """Of messages that are sent as one. IllegalDelay: they do not have the same."""
    delays = {delay_field(message) for message in messages}
    if len(delays) > 1:
        raise IllegalDelay("messages of one batch are delivered at the same time: send them apart")
    return delays.pop() if delays else b""


def group_batch(
    accumulator: Accumulator,
    topic: str,
    messages: Sequence[Encoded],
    queue_id: int | None,
    delay: bytes = b"",
    priorities: Sequence[int] = (),
) -> list[Group] | None:
    """None: the queues of the topic are not known yet. MessageTooLarge when they cannot be one.
    `priorities` has that of each message, if any has one.
    """
    if not messages:
        return []
    if queue_id is None and not accumulator.knows(topic):
        return None
    every = list(range(len(messages)))
    if queue_id is not None:
        groups = [Group(topic, queue_id, Kind.FIXED, list(messages), every, delay)]
    elif by_priority := _by_priority(accumulator, topic, messages, priorities):
        groups = [
            Group(topic, queue, Kind.FIXED, [messages[at] for at in indices], indices, delay)
            for queue, indices in by_priority.items()
        ]
    else:
        queues: dict[int, list[int]] = {}
        for at in every:
            ordering_hash = messages[at][3]
            if ordering_hash is not None:
                found = accumulator.queue_of(topic, ordering_hash)
                if found is None:
                    return None
                queues.setdefault(found, []).append(at)
        if not queues:
            groups = [Group(topic, None, Kind.ANY, list(messages), every, delay)]
        else:
            first = next(iter(queues.values()))
            first += [at for at in every if messages[at][3] is None]
            first.sort()
            groups = [
                Group(topic, queue, Kind.KEY, [messages[at] for at in indices], indices, delay)
                for queue, indices in queues.items()
            ]
    for group in groups:
        _check_size(group)
    return groups


def _by_priority(
    accumulator: Accumulator, topic: str, messages: Sequence[Encoded], priorities: Sequence[int]
) -> dict[int, list[int]]:
    """In a topic with priorities: which messages go to which queue; those of one priority without a
    key stay together.
    """
    queues: dict[int, list[int]] = {}
    chosen: dict[tuple[int, int | None], int] = {}
    for at, message in enumerate(messages):
        place = priorities[at] if priorities else 0, message[3]
        if place not in chosen:
            found = accumulator.queue_by_priority(topic, *place)
            if found is None:
                return {}
            chosen[place] = found
        queues.setdefault(chosen[place], []).append(at)
    return queues


def priority_of(message: Message | bytes | str) -> int:
    return message.priority if isinstance(message, Message) else 0


def _check_size(group: Group) -> None:
    size = sum(len(message[0]) + MESSAGE_OVERHEAD_BYTES for message in group.messages)
    if len(group.messages) > 1 and size > BATCH_BYTES_MAX:
        raise MessageTooLarge(
            f"a batch of {len(group.messages)} messages and {size} bytes for topic {group.topic}: "
            f"at most {BATCH_BYTES_MAX} are allowed; send them in parts"
        )
