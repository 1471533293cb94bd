"""All batches of a producer that are not done: where each waits, and whose turn it is.

A batch is pinned to the line of its queue, or shared and takes the next line that is free, in a
broker set that is well. What is bound to a set keeps its line and its number there until it is
done; it moves to another set only when it is certainly not stored. Each set numbers its batches for
itself. Values without a lock: the accumulator has it. Of sets it knows only the names.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence

from mq.client.producer.lines import MESSAGE_OVERHEAD_BYTES, Batch, Choice, Kind, Line, TopicLines
from mq.client.producer.sequences import Sequences
from mq.wire.v1.cluster_pb2 import TopicRoute

# Batches without a line that are with a broker set: of so many it remembers where they are, when
# an answer was lost.
LOOSE_UNDER_WAY_MAX = 48
# Batches in one request. A broker takes twice as many.
REQUEST_BATCHES_MAX = 1_000


class Harvest:
    """What one `take` has gathered, and when the next one is due."""

    __slots__ = ("batches", "look_s", "now_s", "room", "room_bytes", "well")

    def __init__(
        self, now_s: float, room_bytes: int, free: Collection[str], well: Collection[str]
    ) -> None:
        self.now_s = now_s
        self.room_bytes = dict.fromkeys(free, room_bytes)
        self.room = dict.fromkeys(free, REQUEST_BATCHES_MAX)
        self.well = frozenset(well)
        self.batches: list[Batch] = []
        self.look_s = math.inf

    def add(self, batch: Batch) -> None:
        batch.is_out = True
        self.batches.append(batch)
        self.room_bytes[batch.broker_set] -= batch.size_bytes
        self.room[batch.broker_set] -= 1

    def is_full(self) -> bool:
        return not any(map(self.has_room, self.room_bytes))

    def has_room(self, broker_set: str) -> bool:
        """Not for a set that is not free: once it is, it is looked at again."""
        left = self.room_bytes.get(broker_set)
        if left is None:
            return False
        if left <= 0 or not self.room[broker_set]:
            self.look_s = self.now_s
            return False
        return True

    def sets(self, choice: Choice) -> list[str]:
        """Those for whatever may go to any: that are well, or all if none is."""
        chosen = choice.sets & self.well or choice.sets
        return [one for one in chosen if self.has_room(one)]

    def look_again(self, at_s: float) -> None:
        self.look_s = min(self.look_s, at_s)


class Waiting:
    def __init__(self, producer_id: str | None, linger_s: float) -> None:
        """`producer_id` as `Sequences` has it."""
        self._producer_id = producer_id
        self._linger_s = linger_s
        self._sequences: dict[str, Sequences] = {}
        self.topics: dict[str, TopicLines] = {}
        # Topics with batches that are open or wait, the one to be served next at the front.
        self._active: dict[TopicLines, None] = {}
        self._retrying: list[Batch] = []
        # All of them, oldest first.
        self.unfinished: dict[Batch, None] = {}
        self._loose_under_way: Counter[str] = Counter()

    def set_route(self, topic_name: str, parts: Sequence[TopicRoute], turn: int = 0) -> TopicLines:
        """What the topic has in each set now; some part takes messages."""
        topic = self.topics.get(topic_name)
        if topic is None:
            topic = TopicLines(topic_name, turn)
        topic.set_parts(parts)
        self.topics[topic_name] = topic
        return topic

    def needs(self, broker_set: str) -> bool:
        """Whether that set is wanted: something has to go there, or something like what is sent now
        could.
        """
        if any(batch.broker_set == broker_set for batch in self._retrying):
            return True
        return any(topic.unfinished and topic.may_use(broker_set) for topic in self.topics.values())

    # In

    def open(
        self,
        topic: TopicLines,
        line: Line,
        kind: Kind,
        now_s: float,
        timeout_s: float,
        delay: bytes,
        priority: int,
    ) -> Batch:
        if line.open is not None:
            line.waiting.append(line.open)
        batch = line.open = self.begin(topic, line, kind, now_s, timeout_s, delay, priority)
        if line.queue_id >= 0:
            topic.pinned[line] = None
        return batch

    def begin(
        self,
        topic: TopicLines,
        line: Line | None,
        kind: Kind,
        now_s: float,
        timeout_s: float,
        delay: bytes,
        priority: int,
    ) -> Batch:
        batch = Batch(
            topic.name,
            kind,
            -1 if line is None else line.queue_id,
            now_s,
            timeout_s,
            delay,
            broker_set="" if line is None else line.broker_set,
            priority=priority,
        )
        batch.ripe_s = now_s + self._linger_s
        self.unfinished[batch] = None
        topic.unfinished += 1
        self._active[topic] = None
        return batch

    def open_loose(
        self,
        topic: TopicLines,
        room_bytes: int,
        now_s: float,
        timeout_s: float,
        delay: bytes,
        priority: int,
    ) -> tuple[Batch, bool]:
        """The open batch for messages of any queue that are delivered later, and whether another
        one was closed for it: one with more than `room_bytes` is full.
        """
        key, loose = (delay, timeout_s, priority), topic.loose
        batch = loose.open.get(key)
        is_full = batch is not None and batch.size_bytes > room_bytes
        if batch is not None and is_full:
            loose.close(batch)
        if batch is None or is_full:
            batch = self.begin(topic, None, Kind.LOOSE, now_s, timeout_s, delay, priority)
            loose.open[key] = batch
        return batch, is_full

    # Out

    def take(self, harvest: Harvest) -> None:
        self._take_retries(harvest)
        for topic in list(self._active):
            if harvest.is_full():
                break
            self._take_topic(topic, harvest)
            del self._active[topic]
            if topic.has_waiting():
                self._active[topic] = None

    def _take_retries(self, harvest: Harvest) -> None:
        later: list[Batch] = []
        for batch in self._retrying:
            if batch.broker_set not in harvest.well and self._can_move(batch, harvest.well):
                self._displace(batch)
            elif batch.retry_s <= harvest.now_s and harvest.has_room(batch.broker_set):
                harvest.add(batch)
            else:
                later.append(batch)
                if batch.broker_set in harvest.room_bytes:
                    harvest.look_again(batch.retry_s)
        self._retrying = later

    def _take_topic(self, topic: TopicLines, harvest: Harvest) -> None:
        pinned_s = min(
            (batch.opened_s for line in topic.pinned if (batch := line.next())), default=math.inf
        )
        shared_s = min(
            (batch.opened_s for choice in topic.choices if (batch := choice.shared.next())),
            default=math.inf,
        )
        # The oldest one goes first: those with keys must not keep the others out for ever.
        if topic.loose:
            self._take_loose(topic, harvest, min(pinned_s, shared_s))
        if shared_s <= pinned_s:
            self._take_shared(topic, harvest)
        for line in list(topic.pinned):
            batch = line.next()
            if batch is None:
                del topic.pinned[line]
            elif line.busy is None and not line.is_ripe(harvest.now_s):
                harvest.look_again(batch.ripe_s)
            elif line.busy is None and harvest.has_room(line.broker_set):
                self._bind(line.pop(), line, harvest)
        while self._take_shared(topic, harvest):
            pass
        if topic.loose:
            self._take_loose(topic, harvest, math.inf)

    def _take_loose(self, topic: TopicLines, harvest: Harvest, opened_before_s: float) -> None:
        """Those that are not younger than that."""
        loose, under_way = topic.loose, self._loose_under_way
        while True:
            batch = loose.next(harvest.now_s)
            if batch is None:
                for waiting in itertools.islice(loose.open.values(), 1):
                    harvest.look_again(waiting.ripe_s)
                return
            if batch.opened_s > opened_before_s:
                return
            choice = topic.choices[batch.priority]
            sets = [one for one in harvest.sets(choice) if under_way[one] < LOOSE_UNDER_WAY_MAX]
            line = choice.next_line(sets, is_idle=False)
            if line is None:
                return
            loose.waiting.popleft()
            under_way[line.broker_set] += 1
            batch.place_at(line, *self._numbers(line.broker_set).take())
            harvest.add(batch)

    def _take_shared(self, topic: TopicLines, harvest: Harvest) -> bool:
        """One batch, of the highest priority that has one and a line for it."""
        for choice in reversed(topic.choices):
            batch = choice.shared.next()
            if batch is None:
                continue
            if not choice.shared.is_ripe(harvest.now_s):
                harvest.look_again(batch.ripe_s)
                continue
            line = choice.next_line(harvest.sets(choice), is_idle=True)
            if line is not None:
                self._bind(choice.shared.pop(), line, harvest)
                return True
        return False

    def _bind(self, batch: Batch, line: Line, harvest: Harvest) -> None:
        batch.place_at(line, *self._numbers(line.broker_set).take())
        line.busy = batch
        harvest.add(batch)

    def _numbers(self, broker_set: str) -> Sequences:
        """Of each set its own: it knows only what it has stored itself."""
        found = self._sequences.get(broker_set)
        if found is None:
            found = self._sequences[broker_set] = Sequences(self._producer_id)
        return found

    # Back

    def retry(self, batch: Batch, at_s: float, *, elsewhere: bool = False) -> None:
        """It is taken once more, then, by the same set; by another one as soon as that is not well,
        if it may. `elsewhere`: in another queue, if it may and one is free.
        """
        topic = self.topics[batch.topic]
        if elsewhere and (batch.kind is Kind.ANY or batch.kind is Kind.LOOSE):
            # Not its own line, which it keeps busy.
            needs_line, sets = batch.kind is Kind.ANY, (batch.broker_set,)
            line = topic.choices[batch.priority].next_line(sets, is_idle=needs_line)
            if line is not None:
                if needs_line:
                    topic.line(batch.broker_set, batch.queue_id).busy = None
                    line.busy = batch
                batch.queue_id = line.queue_id
        batch.retry_s = at_s
        batch.is_out = False
        self._retrying.append(batch)

    def _can_move(self, batch: Batch, well: Collection[str]) -> bool:
        sets = self.topics[batch.topic].choices[batch.priority].sets
        return batch.may_move and any(one in well for one in sets if one != batch.broker_set)

    def _displace(self, batch: Batch) -> None:
        """It waits for any set again, before all that wait."""
        self._vacate(batch)
        topic = self.topics[batch.topic]
        batch.displace()
        line = topic.line_of(batch)
        line.waiting.appendleft(batch)
        self._active[topic] = None

    def remove(self, batch: Batch, *, is_stored: bool = False) -> None:
        del self.unfinished[batch]
        self.topics[batch.topic].unfinished -= 1
        self._vacate(batch, is_stored=is_stored)
        if batch in self._retrying:
            self._retrying.remove(batch)

    def _vacate(self, batch: Batch, *, is_stored: bool = False) -> None:
        """Its place is free, and its number if that was certainly not used."""
        self.topics[batch.topic].line_of(batch).remove(batch)
        if batch.kind is Kind.LOOSE and batch.queue_id >= 0:
            self._loose_under_way[batch.broker_set] -= 1
        if batch.sequence and not is_stored and not batch.in_doubt:
            self._numbers(batch.broker_set).give_back(batch.producer_id, batch.sequence)

    def renumber(self, batch: Batch) -> bool:
        """The set takes no more batches of its producer id. Whether it has another one now."""
        numbers = self._numbers(batch.broker_set)
        if batch.in_doubt or not numbers.start_over(batch.producer_id):
            return False
        batch.producer_id, batch.sequence = numbers.take()
        return True

    def split(self, batch: Batch) -> dict[Batch, list[Batch]]:
        """Its queue is gone, and nothing of it was stored: its messages, and those that wait behind
        it, go where their keys lead now, before those that wait there. What there is instead of
        each batch that is no more.
        """
        batch.in_doubt = False
        topic = self.topics[batch.topic]
        line = topic.line(batch.broker_set, batch.queue_id)
        self.remove(batch)
        behind = []
        if line not in topic.writable:
            behind = [one for one in line.batches() if one.kind is Kind.KEY]
            behind.sort(key=lambda one: one is line.open)
            for one in behind:
                self.remove(one)
        self._active[topic] = None
        return {one: self._spread(topic, one) for one in (*reversed(behind), batch)}

    def _spread(self, topic: TopicLines, batch: Batch) -> list[Batch]:
        parts: dict[Line | None, Batch] = {}
        # The topic may be another one by now, of the same name and with fewer of them.
        batch.priority = min(batch.priority, max(topic.priorities - 1, 0))
        for message, future in zip(batch.messages, batch.futures, strict=True):
            is_keyed = batch.kind is Kind.KEY and message[3] is not None
            line = topic.key_line(message[3] or 0, batch.priority) if is_keyed else None
            if line not in parts:
                parts[line] = batch.empty_copy(line)
            parts[line].add(message, future, len(message[0]) + MESSAGE_OVERHEAD_BYTES)
        for line, part in parts.items():
            self.unfinished[part] = None
            topic.unfinished += 1
            topic.line_of(part).waiting.appendleft(part)
            if line is not None:
                topic.pinned[line] = None
        return list(parts.values())
