"""Small sends that come in one turn of the loop, to one queue: together they are one batch.

A send of its own costs a batch, a slot and a share of an entry, far more than the message itself.
Messages that are joined keep all that is theirs: queue, order, offset, id, and the error of the one
that is wrong. Sends without a queue and without an ordering key go to one queue a turn, the next
one in the turn that follows.

Callers leave out sends with a producer id (their batch has a number), with a delay, and with
another acknowledgement than that of the quorum. Large ones, and those that have to wait for room or
for their topic, are not joined either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from mq.broker.attribution import NOBODY, Actor
from mq.broker.publishing import Publisher, Slot
from mq.broker.state.dedup import StoredAt
from mq.broker.state.topics import Topic, Topics
from mq.errors import MqError
from mq.hashing import text_hash
from mq.store import batch as batches
from mq.wire.v1.message_pb2 import Message

# What is larger does not gain by being joined.
_MESSAGES_MAX = 16
_REQUEST_BYTES_MAX = 64 << 10
_KEYS_MAX = 64
# A batch that has so much is closed.
_BATCH_BYTES = 256 << 10


class Placed(NamedTuple):
    """Where the messages of one send are stored."""

    queue_id: int
    queue_offset: int  # of the first
    stored_at_ms: int
    log_offsets: Sequence[int]


# It may have a `sender`, an `Actor`: for traces.
Answer: TypeAlias = Callable[[Placed | BaseException], None]


class _Group:
    """Sends to one queue; `calls` is empty when they are answered."""

    __slots__ = ("calls", "datas", "deadline_s", "keys", "size_bytes", "slot", "starts", "tags")

    def __init__(self) -> None:
        # Of each call, where its messages are among the frames, and how many.
        self.calls: list[tuple[int, int, Answer]] = []
        # The columns of the frames.
        self.datas: list[bytes] = []
        self.tags: list[int] = []
        self.keys: list[Sequence[int]] = []
        self.size_bytes = 0
        self.deadline_s = 0.0
        self.slot: Slot | None = None
        # Of the frames in their batch.
        self.starts: list[int] = []

    def settle(self, stored: StoredAt | MqError) -> None:
        if isinstance(stored, MqError):
            self.fail(stored)
            return
        queue_id, queue_offset, log_offset, stored_at_ms, *_ = stored
        starts = self.starts
        batch_offset = log_offset - starts[0]
        calls, self.calls = self.calls, []
        for first, count, answer in calls:
            if count == 1:
                log_offsets = [batch_offset + starts[first]]
            else:
                log_offsets = [batch_offset + one for one in starts[first : first + count]]
            answer(Placed(queue_id, queue_offset + first, stored_at_ms, log_offsets))

    def fail(self, error: BaseException) -> None:
        calls, self.calls = self.calls, []
        for _, _, answer in calls:
            answer(error)


class JoinedSends:
    def __init__(
        self, publisher: Publisher, topics: Topics, *, message_bytes_max: int, timeout_s: float
    ) -> None:
        self._publisher = publisher
        self._topics = topics
        self._message_bytes_max = message_bytes_max
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # Of this turn.
        self._gathering: dict[tuple[str, int], _Group] = {}
        self._gathered_bytes = 0
        self._chosen: dict[tuple[str, int], int] = {}
        self._turn = 0
        # By deadline, which is the order in which they were submitted; and the timer of the first.
        self._submitted: deque[_Group] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def take(
        self,
        topic_name: str,
        queue_id: int | None,
        messages: Sequence[Message],
        size: int,
        answer: Answer,
        admit: Callable[[str, int, int], None] | None = None,
    ) -> bool:
        """False: this send is not one to be joined, and nothing was done. Without a queue, this
        broker chooses one. `size` is that of the request; `answer` is called once, later. `admit`
        is asked first whether so many bytes and messages may be written to the topic. Raises what
        it raises, and what is wrong with a message.
        """
        topic = self._topics.get(topic_name)
        count = len(messages)
        if (
            not 0 < count <= _MESSAGES_MAX
            or size > _REQUEST_BYTES_MAX
            or topic is None
            or (queue_id or 0) >= topic.write_queues
            or not self._publisher.has_room(self._gathered_bytes + size)
        ):
            return False
        first, bytes_max = messages[0], self._message_bytes_max
        frames = [batches.frame(first, topic_name, bytes_max)]
        if count > 1:
            frames += [batches.frame(one, topic_name, bytes_max) for one in messages[1:]]
        if sum([len(one.key_hashes) for one in frames if one.key_hashes]) > _KEYS_MAX:
            return False
        if admit is not None:
            admit(topic_name, size, count)
        if queue_id is None:
            queue_id = self._choose(topic, first)
        group = self._group(topic_name, queue_id)
        group.calls.append((len(group.datas), count, answer))
        for data, tag, keys in frames:
            group.datas.append(data)
            group.tags.append(tag)
            group.keys.append(keys)
        self._gathered(group, size)
        return True

    def take_frame(
        self,
        topic_name: str,
        queue_id: int,
        frame: bytes,
        size: int,
        answer: Answer,
        admit: Callable[[str, int, int], None] | None = None,
    ) -> bool:
        """As `take`, of one message that is stored in its frame as it came: see
        `batches.frame_hashes`.
        """
        topic = self._topics.get(topic_name)
        if (
            topic is None
            or queue_id >= topic.write_queues
            or not self._publisher.has_room(self._gathered_bytes + size)
        ):
            return False
        tag, keys = batches.frame_hashes(frame, topic_name, self._message_bytes_max)
        if len(keys) > _KEYS_MAX:
            return False
        if admit is not None:
            admit(topic_name, size, 1)
        group = self._group(topic_name, queue_id)
        datas = group.datas
        group.calls.append((len(datas), 1, answer))
        datas.append(frame)
        group.tags.append(tag)
        group.keys.append(keys)
        self._gathered(group, size)
        return True

    def _group(self, topic_name: str, queue_id: int) -> _Group:
        """Of this turn."""
        queue = topic_name, queue_id
        group = self._gathering.get(queue)
        if group is None:
            if not self._gathering:
                self._loop.call_soon(self._end_turn)
            group = self._gathering[queue] = _Group()
        return group

    def _gathered(self, group: _Group, size: int) -> None:
        group.size_bytes += size
        self._gathered_bytes += size
        if group.size_bytes >= _BATCH_BYTES:
            self.submit()

    def _choose(self, topic: Topic, first: Message) -> int:
        if first.ordering_key:
            queues = topic.queues_of(first.priority)
            return queues[text_hash(first.ordering_key) % len(queues)]
        lane = topic.name, first.priority
        chosen = self._chosen.get(lane)
        if chosen is None:
            queues = topic.queues_of(first.priority)
            self._turn += 1
            chosen = self._chosen[lane] = queues[self._turn % len(queues)]
        return chosen

    def _end_turn(self) -> None:
        self.submit()
        self._publisher.write()

    def submit(self) -> None:
        """Submits what this turn has gathered so far: before a batch that must not overtake it."""
        gathered, self._gathering = self._gathering, {}
        self._gathered_bytes = 0
        self._chosen.clear()
        for (topic, queue_id), group in gathered.items():
            self._submit_group(topic, queue_id, group)

    def _submit_group(self, topic: str, queue_id: int, group: _Group) -> None:
        try:
            batch = batches.join_columns(topic, queue_id, group.datas, group.tags, group.keys)
            group.slot = self._publisher.submit(
                batch, on_outcome=group.settle, senders=_senders(group.calls)
            )
        except Exception as error:  # noqa: BLE001 - no caller must wait for an answer in vain
            group.fail(error)
            return
        group.starts = batch.frame_starts.tolist()
        group.datas, group.tags, group.keys = [], [], []
        group.deadline_s = self._loop.time() + self._timeout_s
        while self._submitted and not self._submitted[0].calls:
            self._submitted.popleft()
        self._submitted.append(group)
        if self._timer is None:
            self._timer = self._loop.call_at(group.deadline_s, self._sweep)

    def _sweep(self) -> None:
        """One timer for all: answers those whose time is over, and comes back for the next."""
        now_s = self._loop.time()
        self._timer = None
        while self._submitted:
            group = self._submitted[0]
            if group.calls and group.deadline_s > now_s:
                self._timer = self._loop.call_at(group.deadline_s, self._sweep)
                return
            self._submitted.popleft()
            if group.calls and group.slot is not None:
                group.fail(self._publisher.timed_out(group.slot))


def _senders(calls: Sequence[tuple[int, int, Answer]]) -> list[tuple[Actor, int]]:
    """The senders of the calls, each with the number of its messages that follow each other."""
    found: list[tuple[Actor, int]] = []
    last, messages = NOBODY, 0
    for _, count, answer in calls:
        sender = getattr(answer, "sender", NOBODY)
        if sender is not last and messages:
            found.append((last, messages))
            messages = 0
        last = sender
        messages += count
    found.append((last, messages))
    return found
