"""The topics of the broker set: part of the replicated state, changed only by applying commands.

Questions that every request asks are answered here: does the topic exist, may it be written or
read, does it have this queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mq import names
from mq.errors import IllegalRequest, PermissionDenied, QueueNotFound, TopicNotFound
from mq.wire.v1.state_pb2 import PutTopic, TopicState


class Topic(NamedTuple):
    name: str
    type: int
    # Queues 0 to n - 1 take messages, and are consumed.
    write_queues: int
    read_queues: int
    is_readable: bool
    is_writable: bool
    created_at_ms: int
    # 0: none; otherwise queue i has the priority i modulo this.
    priorities: int = 0
    # The end of the log at its creation: messages before belong to another topic of this name.
    created_at_log_offset: int = 0
    # The user that created it; empty: none that is known.
    owner: str = ""

    def rank(self, queue_id: int) -> int:
        """The distance of a queue from the highest priority; 0 in a topic without priorities."""
        return self.priorities - 1 - queue_id % self.priorities if self.priorities > 1 else 0

    def queues_of(self, priority: int) -> range:
        """The queues of this priority that take messages. Raises IllegalRequest if there are
        none.
        """
        if self.priorities < 2:
            return range(self.write_queues)
        if priority >= self.priorities:
            raise IllegalRequest(
                f"priority {priority}: topic {self.name} has {self.priorities}, 0 (the lowest) to "
                f"{self.priorities - 1}"
            )
        return range(priority, self.write_queues, self.priorities)

    @property
    def is_internal(self) -> bool:
        return names.is_internal_topic(self.name)

    def command(self) -> PutTopic:
        return PutTopic(
            topic=self.name,
            type=self.type,  # type: ignore[arg-type]  # an enum is a number on the wire
            write_queues=self.write_queues,
            read_queues=self.read_queues,
            is_readable=self.is_readable,
            is_writable=self.is_writable,
            priorities=self.priorities,
            owner=self.owner,
        )


class Topics:
    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        # Bytes of all batches since each topic was created; applying adds those of a batch.
        self.stored_totals: dict[str, int] = {}
        # Messages that wait for their time, of topics that have some.
        self._delayed: dict[str, int] = {}
        # False: this state is older than such counting, which begins with the next checkpoint.
        self.counts_stored_bytes = False
        # Goes up with every change: what was derived from topics asks again then.
        self.version = 0

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(sorted(self._topics.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    @property
    def internal_count(self) -> int:
        """Topics of the broker's own."""
        return sum(topic.is_internal for topic in self._topics.values())

    @property
    def queue_count(self) -> int:
        """Queues to read, of all other topics; as `mq topic list` shows them."""
        own = (topic for topic in self._topics.values() if not topic.is_internal)
        return sum(topic.read_queues for topic in own)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        topic = self._topics.get(name)
        if topic is None:
            names.check_topic(name)
            error = TopicNotFound(
                f"there is no topic {name}: create it with `mq topic create {name}`"
            )
            error.topic = name
            raise error
        return topic

    def writable(self, name: str, queue_id: int) -> Topic:
        """Raises TopicNotFound, QueueNotFound; PermissionDenied where no producer may write."""
        topic = self.find(name)
        if topic.is_internal or not topic.is_writable:
            why = "it is the broker's own" if topic.is_internal else "writing is switched off"
            raise PermissionDenied(f"topic {name} cannot be written: {why}")
        if queue_id >= topic.write_queues:
            raise QueueNotFound(
                f"topic {name} has no queue {queue_id} for writing: it has {topic.write_queues}"
            )
        return topic

    def readable(self, name: str, queue_id: int = 0) -> Topic:
        """Raises TopicNotFound, QueueNotFound; PermissionDenied where no consumer may read."""
        topic = self.find(name)
        if not names.is_readable_topic(name) or not topic.is_readable:
            why = "reading is switched off" if not topic.is_internal else "it is the broker's own"
            raise PermissionDenied(f"topic {name} cannot be read: {why}")
        if queue_id >= topic.read_queues:
            raise QueueNotFound(
                f"topic {name} has no queue {queue_id} for reading: it has {topic.read_queues}"
            )
        return topic

    def rank(self, name: str, queue_id: int) -> int:
        """The rank of the queue in its topic; 0 if the topic is gone."""
        topic = self._topics.get(name)
        return topic.rank(queue_id) if topic else 0

    def delayed_messages(self, name: str) -> int:
        """Messages of the topic that wait for their time."""
        return self._delayed.get(name, 0)

    # -- applying ---------------------------------------------------------------------------------

    def count_delayed(self, name: str, messages: int) -> None:
        """So many more wait, or fewer."""
        if name not in self._topics:
            return
        waiting = self._delayed.get(name, 0) + messages
        if waiting > 0:
            self._delayed[name] = waiting
        else:
            self._delayed.pop(name, None)

    def none_is_delayed(self) -> None:
        """Counts anew: messages that were lost on the way do not count for ever."""
        self._delayed.clear()

    def begin_counting(self, states: Iterable[TopicState]) -> None:
        """From the totals of the first checkpoint that has such: they are 0, unless the leader that
        wrote it counted before.
        """
        totals = {one.topic.topic: one.stored_bytes for one in states}
        self.stored_totals = {name: totals.get(name, 0) for name in self._topics}
        self.counts_stored_bytes = True

    def put(self, command: PutTopic, now_ms: int, log_offset: int = 0) -> None:
        known = self._topics.get(command.topic)
        if known is not None:
            now_ms, log_offset = known.created_at_ms, known.created_at_log_offset
        self._topics[command.topic] = _topic(command, now_ms, log_offset)
        if self.counts_stored_bytes:
            self.stored_totals.setdefault(command.topic, 0)
        self.version += 1

    def drop(self, name: str) -> bool:
        self.version += 1
        self.stored_totals.pop(name, None)
        self._delayed.pop(name, None)
        return self._topics.pop(name, None) is not None

    def encode(self) -> Iterator[TopicState]:
        for topic in self:
            yield TopicState(
                topic=topic.command(),
                created_at_ms=topic.created_at_ms,
                created_at_log_offset=topic.created_at_log_offset,
                stored_bytes=self.stored_totals.get(topic.name, 0),
                delayed_messages=self._delayed.get(topic.name, 0),
            )

    def restore(self, states: Sequence[TopicState], *, counts_stored_bytes: bool) -> None:
        self._topics = {
            one.topic.topic: _topic(one.topic, one.created_at_ms, one.created_at_log_offset)
            for one in states
        }
        self.stored_totals.clear()
        self._delayed = {
            one.topic.topic: one.delayed_messages for one in states if one.delayed_messages
        }
        self.counts_stored_bytes = False
        if counts_stored_bytes:
            self.begin_counting(states)
        self.version += 1


def _topic(command: PutTopic, created_at_ms: int, log_offset: int) -> Topic:
    return Topic(
        command.topic,
        command.type,
        command.write_queues,
        command.read_queues,
        command.is_readable,
        command.is_writable,
        created_at_ms,
        command.priorities,
        log_offset,
        command.owner,
    )
