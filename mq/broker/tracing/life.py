"""The life of one message: what entries, fed in the order of the log, say about it.

Pure: it reads nothing, knows no thread and no clock. It keeps what is open: places on queues where
groups may find the message, batches that wait with it, its transaction, its dead letters. Of a
picture of the state (`picture`) it can tell whether something that it waits for has happened by
then; its owner feeds it the entries of those stretches of the log only.

Invariant: events come in the order of the entries that say them. An entry that was fed is not fed
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mq import names
from mq.broker.attribution import NOBODY, Actor
from mq.broker.queue import Queue
from mq.broker.state.leases import Range
from mq.broker.state.schedule import LanePosition
from mq.broker.state.transactions import half_terms
from mq.broker.tracing.actors import ActorTable
from mq.broker.tracing.copies import copy_at, delivered_copy, frame_at
from mq.broker.tracing.entries import TracedEntry
from mq.broker.tracing.events import (
    Copy,
    Event,
    EventKind,
    GroupSummary,
    Standing,
)
from mq.broker.tracing.picture import Picture
from mq.store.batch import Batch, message_of_frame
from mq.store.holding import lane_of
from mq.wire.v1 import state_pb2 as pb
from mq.wire.v1.message_pb2 import Message

# More than that is no life that can be read.
EVENTS_MAX = 5_000

# The queue offset of a message, by its queue and log offset; -1: it is in none, or was dropped.
Resolve = Callable[[Queue, int], int]
# Whether a filter, in its canonical form, lets the message through.
Passes = Callable[[str, Message], bool]


class Birth(NamedTuple):
    """Where the message is stored first, as far as the log goes back."""

    entry: TracedEntry
    # Number of its batch in the entry, and its own in the batch.
    batch_at: int
    message_at: int
    message: Message

    @property
    def batch(self) -> Batch:
        return self.entry.batches[self.batch_at][0]

    @property
    def batch_log_offset(self) -> int:
        return self.entry.batches[self.batch_at][1]

    @property
    def log_offset(self) -> int:
        return self.batch_log_offset + int(self.batch.frame_starts[self.message_at])

    @property
    def frame(self) -> bytes:
        return frame_at(self.batch, self.message_at)


@dataclass(slots=True)
class _View:
    """The message at one place, as one group sees it."""

    position: int = -1
    is_done: bool = False
    standing: Standing = Standing.NOT_REACHED
    # Of a group that receives.
    lease: Range | None = None
    next_new: int | None = None
    holder: Actor = NOBODY


@dataclass(slots=True)
class _Place:
    """On a queue, for all groups or for one."""

    copy: Copy
    group: str = ""
    views: dict[str, _View] = field(default_factory=dict)

    def is_for(self, group: str) -> bool:
        return self.group in ("", group)

    def view(self, group: str) -> _View:
        return self.views.setdefault(group, _View())


@dataclass(slots=True)
class _Held:
    """In a batch that waits for its time: a delayed message, or the next attempt of a group."""

    copy: Copy
    batch_log_offset: int
    first_message_at: int
    message_at: int
    # The log offset that the message itself had at first.
    first_log_offset: int
    due_ms: int
    frame: bytes
    group: str = ""
    attempts: int = 0

    @property
    def place(self) -> LanePosition:
        return LanePosition(self.due_ms, self.batch_log_offset)


@dataclass(slots=True)
class _Half:
    copy: Copy
    transaction_id: int
    message_at: int
    producer_group: str
    checks: int = 0


class Life:
    def __init__(self, birth: Birth, broker_set: str, resolve: Resolve, passes: Passes) -> None:
        self.birth = birth
        self._broker_set = broker_set
        self._resolve = resolve
        self._passes = passes
        self._actors = ActorTable()
        self._places: list[_Place] = []
        self._held: list[_Held] = []
        self._half: _Half | None = None
        # Queue offsets of dead letters, by group.
        self._dead: dict[str, int] = {}
        self._locks: dict[tuple[str, Queue], str] = {}
        # The opening of the stretch that is fed now.
        self._base: Picture | None = None
        # Of the entry that is fed now: groups that a copy was made for, or that resent one.
        self._copied: set[str] = set()
        self._resent: set[str] = set()
        self.topic_is_deleted = False
        # Its topic is deleted by now, and the queue offset went with the topic's queues.
        self.is_unplaced = False
        self.events: list[Event] = []
        self._heeded: dict[str | None, Callable[[TracedEntry, Any], None]] = {
            "deliver_scheduled": self._deliver_scheduled,
            "recall_scheduled": self._recall_scheduled,
            "carry_scheduled": self._carry_scheduled,
            "change_transactions": self._change_transactions,
            "commit_positions": self._commit_positions,
            "change_leases": self._change_leases,
            "lock_queues": self._lock_queues,
            "drop_group": self._drop_group,
            "drop_topic": self._drop_topic,
            "trim_queues": self._trim_queues,
            "settle_letters": self._settle_letters,
        }
        self._begin()

    # -- questions --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Nothing can happen to it any more."""
        is_unplaced = self.is_unplaced and not self.topic_is_deleted
        is_open = self._places or self._held or self._half or self._dead or is_unplaced
        return not is_open or len(self.events) >= EVENTS_MAX

    @property
    def is_cut(self) -> bool:
        return len(self.events) >= EVENTS_MAX

    @property
    def raft_index(self) -> int:
        """Of the entry that it is stored by."""
        return self.birth.entry.ref.raft_index

    @property
    def topic(self) -> str:
        """That it was sent to."""
        batch, message = self.birth.batch, self.birth.message
        return message.origin.topic if group_of_copy(batch.topic) else batch.topic

    @property
    def queue(self) -> Queue:
        return Queue(self.birth.batch.topic, self.birth.batch.queue_id)

    @property
    def queue_offset(self) -> int:
        """Of the first place on its topic; -1: it has none."""
        return self._places[0].copy.queue_offset if self._places else -1

    @property
    def transaction_ids(self) -> list[int]:
        return [self._half.transaction_id] if self._half else []

    @property
    def missing(self) -> str:
        """The gaps of the trace and their reasons; empty if there are none."""
        if self.is_cut:
            return f"there are more than {EVENTS_MAX} events"
        if self.is_unplaced:
            return "its topic was deleted: which groups had read it is not told"
        return ""

    def needles(self) -> list[bytes]:
        """An entry about positions or leases that has none of these bytes is not about it."""
        return [one.encode() for one in {place.copy.queue.topic for place in self._places}]

    def is_touched(self, picture: Picture) -> bool:
        """Whether something has happened to it by then."""
        topic = self.birth.batch.topic
        created_at = picture.topics.get(topic)
        is_there = created_at is not None and created_at[0] <= self.birth.entry.ref.log_offset
        if not is_there and not self.topic_is_deleted and not names.is_internal_topic(topic):
            return True
        return (
            any(self._is_place_touched(place, picture) for place in self._places)
            or any(_has_left(held, picture) for held in self._held)
            or (
                self._half is not None
                and picture.checks.get(self._half.transaction_id, -1) != self._half.checks
            )
            or any(self._has_new(names.retry_topic(group), picture) for group in self._dead)
        )

    def _is_place_touched(self, place: _Place, picture: Picture) -> bool:
        queue, queue_offset = place.copy.queue, place.copy.queue_offset
        if not picture.shows(queue):
            return True
        for group in [place.group] if place.group else self._groups_at(picture, place):
            view = place.views.get(group)
            position = picture.position(group, queue)
            if view is not None and view.is_done:
                continue
            if position > queue_offset or (view is not None and view.position > position):
                return True
            # Neighbours of the message may have left its range.
            held = picture.lease(group, queue, queue_offset)
            if (held and held[2:]) != (view.lease and view.lease[2:] if view else None):
                return True
            # A group that has begun elsewhere and not here does not read the topic.
            is_reading = position >= 0 or group not in picture.placed
            if is_reading and (
                self._has_new(names.retry_topic(group), picture)
                or self._has_new(names.dead_letter_topic(group), picture)
            ):
                return True
        return False

    def _groups_at(self, picture: Picture, place: _Place) -> set[str]:
        """Also those of which there is nothing but retries."""
        failing = {group_of_copy(topic) for topic in picture.topics} - {""}
        return failing | picture.groups | place.views.keys()

    def _has_new(self, topic: str, picture: Picture) -> bool:
        """Whether a copy may have been written to the topic since the base."""
        before = self._base.stored_bytes(topic) if self._base is not None else 0
        is_counted = picture.counts_bytes and (self._base is None or self._base.counts_bytes)
        return not is_counted or picture.stored_bytes(topic) != before

    def summaries(self, now: Picture) -> list[GroupSummary]:
        """Where it stands with each group that reads its topic, by the state at the end."""
        found = []
        waiting = {held.group: held for held in self._held if held.group}
        groups = {group for place in self._places for group in place.views}
        groups |= waiting.keys() | self._dead.keys()
        for place in self._places:
            if not place.group:
                groups |= {one for one in now.groups if now.position(one, place.copy.queue) >= 0}
        for group in sorted(groups):
            places = [place for place in self._places if place.is_for(group)]
            if group in waiting:
                held = waiting[group]
                standing, queue, attempts = Standing.WAITING, held.copy.queue, held.attempts
                found.append(GroupSummary(group, standing, queue, -1, 0, attempts))
            elif places:
                found.append(_summary(group, places[-1], now))
        return found

    # -- the beginning ----------------------------------------------------------------------------

    def _begin(self) -> None:
        birth = self.birth
        batch, message = birth.batch, birth.message
        queue = Queue(batch.topic, batch.queue_id)
        copy = Copy(queue, birth.log_offset)
        if message.born_at_ms:
            self._add(EventKind.BORN, message.born_at_ms, copy, raft_index=0)
        if batch.half:
            group = _producer_group(batch)
            first_id = birth.batch_log_offset + batch.region_start
            transaction_id = batch.origin_log_offset or first_id
            self._half = _Half(copy, transaction_id, birth.message_at, group)
            self._say(birth.entry, EventKind.HALF, copy, group=group)
        elif batch.deliver_at_ms:
            self._hold(birth.entry, birth.batch_at, birth.message_at, EventKind.DELAYED)
        else:
            copy = copy._replace(queue_offset=self._resolve(queue, birth.log_offset))
            group, attempts = group_of_copy(queue.topic), message.origin.attempts
            is_dead = queue.topic.startswith(names.DEAD_LETTER_PREFIX)
            kind = EventKind.STORED
            if group:
                kind = EventKind.DEAD_LETTER if is_dead else EventKind.REDELIVERED
            self._say(
                birth.entry, kind, copy, group=group, attempt=attempts, reason=message.origin.reason
            )
            if is_dead:
                self._dead[group] = copy.queue_offset
            self._put(copy, group)

    # -- feeding ----------------------------------------------------------------------------------

    def sync(self, picture: Picture) -> None:
        """The entries fed next follow this picture: whatever was skipped did not touch it."""
        self._base = picture
        for place in self._places:
            queue, queue_offset = place.copy.queue, place.copy.queue_offset
            for group in [place.group] if place.group else picture.groups:
                position = picture.position(group, queue)
                if position < 0:
                    continue
                view = place.view(group)
                view.position, view.next_new = position, picture.next_new(group, queue)
                if not view.is_done:
                    view.lease = picture.lease(group, queue, queue_offset)
                    if position > queue_offset:
                        view.is_done, view.standing = True, Standing.PASSED
        if self._half is not None:
            self._half.checks = picture.checks.get(self._half.transaction_id, self._half.checks)
        self._locks.update(picture.locks)

    def feed(self, entry: TracedEntry) -> None:
        self._actors.learn(entry)
        index = entry.ref.raft_index
        if index < self.raft_index:
            self._look_before(entry)
            return
        if index == self.raft_index:
            self._name_sender(entry)
            return
        self._copied.clear()
        self._resent.clear()
        kinds = [(one.WhichOneof("kind"), one) for one in entry.commands()]
        if entry.has_internal and not any(kind in _WRITES_AGAIN for kind, _ in kinds):
            self._look_for_copies(entry)
        for kind, command in kinds:
            if kind in self._heeded:
                self._heeded[kind](entry, getattr(command, kind or ""))

    def _look_before(self, entry: TracedEntry) -> None:
        """Where groups were when it was stored."""
        for command in entry.commands():
            kind = command.WhichOneof("kind")
            if kind == "lock_queues":
                self._lock_queues(entry, command.lock_queues)
            elif kind == "commit_positions":
                for place in self._places:
                    for each in command.commit_positions.groups:
                        for one in each.positions:
                            if (one.topic, one.queue_id) == place.copy.queue:
                                place.view(each.group).position = one.queue_offset

    def _name_sender(self, entry: TracedEntry) -> None:
        sender = self._actors.sender(entry, self.birth.batch_at, self.birth.message_at)
        if sender == NOBODY or group_of_copy(self.birth.batch.topic):
            return
        # Of the first events: born, and stored.
        for at, event in enumerate(self.events[:2]):
            if event.kind in _BY_PRODUCERS:
                self.events[at] = event._replace(actor=sender)

    # -- copies -----------------------------------------------------------------------------------

    def _ids(self) -> list[str]:
        """By which copies name the message: where it was on its topic."""
        found = {
            names.message_id(self._broker_set, place.copy.log_offset)
            for place in self._places
            if not place.group
        }
        origin = self.birth.message.origin
        if group_of_copy(self.birth.batch.topic) and origin.message_id:
            found.add(origin.message_id)
        return sorted(found)

    def _look_for_copies(self, entry: TracedEntry) -> None:
        ids = self._ids()
        for batch_at, (batch, _) in enumerate(entry.batches):
            group = group_of_copy(batch.topic)
            if not group:
                continue
            data = bytes(batch.data)
            if not any(one.encode() in data for one in ids):
                continue
            for message_at in range(batch.message_count):
                message = _opened(frame_at(batch, message_at))
                if message is not None and message.origin.message_id in ids:
                    self._copy_found(entry, batch_at, message_at, message, group)

    def _copy_found(
        self, entry: TracedEntry, batch_at: int, message_at: int, message: Message, group: str
    ) -> None:
        batch, at = entry.batches[batch_at]
        queue = Queue(batch.topic, batch.queue_id)
        copy = Copy(queue, at + int(batch.frame_starts[message_at]))
        origin = message.origin
        said = {"group": group, "attempt": origin.attempts, "reason": origin.reason}
        who = self._copier(entry, batch_at, message_at, group)
        if batch.topic.startswith(names.DEAD_LETTER_PREFIX):
            copy = self._resolved(copy)
            self._say(entry, EventKind.DEAD_LETTER, copy, actor=who, **said)
            self._close(group, Standing.DEAD_LETTER)
            self._dead[group] = copy.queue_offset
        elif batch.is_held:
            self._close(group, Standing.WAITING)
            self._hold(entry, batch_at, message_at, EventKind.RETRY, actor=who, **said)
        else:
            copy = self._resolved(copy)
            is_resent = group in self._dead
            kind = EventKind.RESENT if is_resent else EventKind.RETRY
            self._say(entry, kind, copy, actor=who, **said)
            self._close(group, Standing.WAITING)
            self._put(copy, group)
            if is_resent:
                self._resent.add(group)
        self._copied.add(group)

    def _copier(self, entry: TracedEntry, batch_at: int, message_at: int, group: str) -> Actor:
        """The member that wanted the copies of the entry, of which the first has its id; or who had
        the message.
        """
        found = self._actors.sender(entry, batch_at, message_at)
        for at, (batch, _) in enumerate(entry.batches):
            if found == NOBODY and batch.producer_id:
                found = self._actors.sender(entry, at, 0)
        if not found.member_id:
            return self._holder(group)
        return found._replace(producer_id="")

    def _holder(self, group: str) -> Actor:
        """The holder of the message, by its newest place for the group."""
        for place in reversed(self._places):
            if place.is_for(group):
                view = place.views.get(group)
                if view is not None and view.holder != NOBODY:
                    return view.holder
                return Actor(member_id=self._locks.get((group, place.copy.queue), ""))
        return NOBODY

    def _close(self, group: str, standing: Standing) -> None:
        """The group is done with its newest place."""
        for place in reversed(self._places):
            if place.is_for(group):
                view = place.view(group)
                view.is_done, view.standing, view.lease = True, standing, None
                return

    def _hold(
        self, entry: TracedEntry, batch_at: int, message_at: int, kind: EventKind, **said: object
    ) -> None:
        batch, at = entry.batches[batch_at]
        copy = Copy(Queue(batch.topic, batch.queue_id), at + int(batch.frame_starts[message_at]))
        first_message_at = batch.origin_log_offset or at + batch.region_start
        distance = int(batch.frame_starts[message_at]) - batch.region_start
        self._held.append(
            _Held(
                copy,
                at,
                first_message_at,
                message_at,
                first_message_at + distance,
                batch.deliver_at_ms,
                frame_at(batch, message_at),
                group_of_copy(batch.topic),
                int(said.get("attempt", 0)),  # type: ignore[call-overload]  # fields of Event
            )
        )
        self._say(entry, kind, copy, until_ms=batch.deliver_at_ms, **said)

    # -- what waits -------------------------------------------------------------------------------

    def _deliver_scheduled(self, entry: TracedEntry, command: pb.DeliverScheduled) -> None:
        for held in list(self._held):
            lane = lane_of(held.due_ms)
            is_reached = any(
                one.lane == lane and LanePosition(one.due_ms, one.log_offset) >= held.place
                for one in command.lanes
            )
            if not is_reached:
                continue
            topic = held.copy.queue.topic
            copy = delivered_copy(entry, command.sources, topic, held.first_message_at, held.frame)
            if copy is not None:
                self._held.remove(held)
                kind = EventKind.REDELIVERED if held.group else EventKind.DELIVERED
                copy = self._resolved(copy)
                attempt = held.attempts + 1 if held.group else 0
                self._say(entry, kind, copy, group=held.group, attempt=attempt)
                self._put(copy, held.group)
            elif self.topic_is_deleted:
                self._held.remove(held)
                self._say(entry, EventKind.DROPPED, held.copy, group=held.group)

    def _recall_scheduled(self, entry: TracedEntry, command: pb.RecallScheduled) -> None:
        for held in list(self._held):
            if command.message_log_offset == held.first_log_offset:
                self._held.remove(held)
                self._say(entry, EventKind.RECALLED, held.copy)

    def _carry_scheduled(self, entry: TracedEntry, _: pb.CarryScheduled) -> None:
        for held in self._held:
            for batch, at in entry.batches:
                is_it = batch.is_held and batch.origin_log_offset == held.first_message_at
                if is_it and not batch.half and held.message_at < batch.message_count:
                    log_offset = at + int(batch.frame_starts[held.message_at])
                    held.batch_log_offset = at
                    held.copy = held.copy._replace(log_offset=log_offset)
                    self._say(
                        entry,
                        EventKind.CARRIED,
                        held.copy,
                        group=held.group,
                        until_ms=held.due_ms,
                    )

    # -- transactions -----------------------------------------------------------------------------

    def _change_transactions(self, entry: TracedEntry, change: pb.ChangeTransactions) -> None:
        half = self._half
        if half is None:
            return
        id_, group = half.transaction_id, half.producer_group
        for one in change.checked:
            if one.id == id_:
                half.checks += 1
                self._say(
                    entry,
                    EventKind.CHECKED,
                    half.copy,
                    group=group,
                    attempt=half.checks,
                    until_ms=one.next_check_ms,
                )
        if id_ in change.committed:
            batch_at = list(change.committed).index(id_)
            copy = copy_at(entry, batch_at, half.message_at)
            if copy is not None:
                copy = self._resolved(copy)
                self._say(entry, EventKind.COMMITTED, copy, group=group)
                self._put(copy)
            self._half = None
        elif id_ in change.rolled_back:
            self._say(entry, EventKind.ROLLED_BACK, half.copy, group=group)
            self._half = None
        elif id_ in change.given_up:
            copy, reason = self._given_up(entry, half)
            self._say(entry, EventKind.GIVEN_UP, copy, group=group, reason=reason)
            self._half = None

    def _given_up(self, entry: TracedEntry, half: _Half) -> tuple[Copy, str]:
        wanted = names.message_id(self._broker_set, half.transaction_id)
        for batch_at, (batch, _) in enumerate(entry.batches):
            if batch.topic != names.GIVE_UP_TOPIC or half.message_at >= batch.message_count:
                continue
            message = _opened(frame_at(batch, half.message_at))
            if message is not None and message.origin.message_id == wanted:
                copy = copy_at(entry, batch_at, half.message_at)
                if copy is not None:
                    return self._resolved(copy), message.origin.reason
        return half.copy, ""

    # -- groups -----------------------------------------------------------------------------------

    def _commit_positions(self, entry: TracedEntry, command: pb.CommitPositions) -> None:
        for place in self._places:
            queue = place.copy.queue
            for each in command.groups:
                if not place.is_for(each.group):
                    continue
                for at, one in enumerate(each.positions):
                    if one.queue_id == queue.queue_id and one.topic == queue.topic:
                        actor = self._actors.one_of(entry.ref.term, each.actors, at)
                        self._moved(entry, place, each.group, one.queue_offset, actor)

    def _moved(
        self, entry: TracedEntry, place: _Place, group: str, position: int, actor: Actor
    ) -> None:
        view, copy = place.view(group), place.copy
        before = view.position if view.next_new is None else view.next_new
        is_first, view.position = view.position < 0, position
        if view.next_new is not None:
            # A group that receives was set to another place.
            view.next_new, view.lease = position, None
        if position <= copy.queue_offset:
            # A retry or a dead letter is written before the position has passed the message.
            if view.is_done and before > copy.queue_offset:
                view.is_done, view.standing = False, Standing.NOT_REACHED
                self._say(entry, EventKind.GROUP_MOVED, copy, group=group, actor=actor)
            return
        if view.is_done:
            return
        if actor == NOBODY and is_first and self._actors.is_told:
            view.is_done, view.standing = True, Standing.BEGAN_BEHIND
            self._say(entry, EventKind.BEGAN_BEHIND, copy, group=group)
            return
        if actor == NOBODY:
            actor = Actor(member_id=self._locks.get((group, copy.queue), ""))
        wanted = "" if place.group else dict(actor.filters).get(copy.queue.topic, "")
        is_skipped = bool(wanted) and not self._passes(wanted, self.birth.message)
        view.is_done = True
        view.standing = Standing.SKIPPED if is_skipped else Standing.PASSED
        self._say(
            entry,
            EventKind.SKIPPED if is_skipped else EventKind.PASSED,
            copy,
            group=group,
            actor=actor,
            filter=wanted if is_skipped else "",
        )

    def _change_leases(self, entry: TracedEntry, command: pb.ChangeLeases) -> None:
        for place in self._places:
            queue = place.copy.queue
            for one in command.queues:
                if (
                    one.queue_id != queue.queue_id
                    or one.topic != queue.topic
                    or not place.is_for(one.group)
                ):
                    continue
                view = place.view(one.group)
                if not one.HasField("next") and _begins_behind(one, place.copy.queue_offset):
                    view.is_done, view.standing = True, Standing.BEGAN_BEHIND
                    self._say(entry, EventKind.BEGAN_BEHIND, place.copy, group=one.group)
                if one.HasField("next") and view.next_new not in (None, one.next):
                    continue  # the group was moved meanwhile, and nothing changed
                view.next_new = one.next if one.HasField("next") else view.next_new or 0
                for change in one.changes:
                    if change.start <= place.copy.queue_offset < change.end:
                        self._leased(entry, place, one.group, change)
                    view.next_new = max(view.next_new, change.end)

    def _leased(
        self, entry: TracedEntry, place: _Place, group: str, change: pb.LeaseChange
    ) -> None:
        view, copy, before = place.view(group), place.copy, place.view(group).lease
        at = copy.queue_offset - change.start
        actor = self._actors.one_of(entry.ref.term, change.actors, at)
        if view.is_done:
            return
        if change.is_done:
            self._lease_done(entry, place, group, actor)
            return
        after = Range(change.start, change.end, change.lease, change.visible_at_ms, change.attempts)
        view.lease = after
        view.standing = Standing.LEASED if after.lease else Standing.WAITING
        kind = _lease_event(before, after)
        if kind == EventKind.RECEIVED:
            if before is not None and before.lease:
                expired = Event(
                    EventKind.LEASE_EXPIRED,
                    before.visible_at_ms,
                    copy,
                    group,
                    view.holder,
                    attempt=before.attempts,
                )
                self.events.append(expired)
            view.holder = actor
        if kind is not None:
            self._say(
                entry,
                kind,
                copy,
                group=group,
                actor=actor if actor != NOBODY else view.holder,
                attempt=before.attempts if before and kind in _OF_LAST else after.attempts,
                until_ms=after.visible_at_ms,
                reason=change.reason,
            )

    def _lease_done(self, entry: TracedEntry, place: _Place, group: str, actor: Actor) -> None:
        view, copy = place.view(group), place.copy
        before, view.lease, view.is_done = view.lease, None, True
        if group in self._copied:
            return  # a dead letter, which was told
        if before is not None and before.lease:
            view.standing = Standing.ACKNOWLEDGED
            who = actor if actor != NOBODY else view.holder
            attempt = before.attempts
            self._say(entry, EventKind.ACKNOWLEDGED, copy, group=group, actor=who, attempt=attempt)
            return
        view.standing = Standing.SKIPPED
        wanted = self._actors.filter_of(group, copy.queue.topic)
        self._say(entry, EventKind.SKIPPED, copy, group=group, actor=actor, filter=wanted)

    def _lock_queues(self, _: TracedEntry, command: pb.LockQueues) -> None:
        for one in command.locks:
            self._locks[command.group, Queue(one.topic, one.queue_id)] = one.member_id

    def _drop_group(self, entry: TracedEntry, command: pb.DropGroup) -> None:
        group, was_known = command.group, False
        for place in list(self._places):
            if place.views.pop(group, None) is not None:
                was_known = True
        if was_known and self._places:
            copy = self._places[0].copy
            self._say(entry, EventKind.GROUP_DELETED, copy, group=group)

    def _drop_topic(self, entry: TracedEntry, command: pb.DropTopic) -> None:
        if command.topic != self.birth.batch.topic:
            return
        self.topic_is_deleted = True
        copy = Copy(Queue(command.topic, self.birth.batch.queue_id), self.birth.log_offset)
        self._say(entry, EventKind.TOPIC_DELETED, copy)
        self._places = [place for place in self._places if place.group]

    def _trim_queues(self, entry: TracedEntry, command: pb.TrimQueues) -> None:
        for start in command.starts:
            group = group_of_copy(start.topic)
            letter = self._dead.get(group)
            if letter is None or start.topic != names.dead_letter_topic(group):
                continue
            if letter < start.queue_offset:
                del self._dead[group]
                if group not in self._resent:
                    copy = Copy(Queue(start.topic, 0), 0, letter)
                    self._say(entry, EventKind.PURGED, copy, group=group)

    def _settle_letters(self, entry: TracedEntry, command: pb.SettleLetters) -> None:
        """Single letters were purged, or sent again, which their copies tell."""
        letter = self._dead.get(command.group)
        if letter is not None and letter in command.purged:
            del self._dead[command.group]
            copy = Copy(Queue(names.dead_letter_topic(command.group), 0), 0, letter)
            self._say(entry, EventKind.PURGED, copy, group=command.group)

    def _put(self, copy: Copy, group: str = "") -> None:
        """It is on a queue from now on."""
        if copy.queue_offset < 0:
            self.is_unplaced = True
        else:
            self._places.append(_Place(copy, group))

    # -- events -----------------------------------------------------------------------------------

    def _resolved(self, copy: Copy) -> Copy:
        return copy._replace(queue_offset=self._resolve(copy.queue, copy.log_offset))

    def _say(self, entry: TracedEntry, kind: EventKind, copy: Copy, **said: object) -> None:
        ref = entry.ref
        self._add(kind, ref.stored_at_ms, copy, raft_index=ref.raft_index, term=ref.term, **said)

    def _add(self, kind: EventKind, at_ms: int, copy: Copy, **said: object) -> None:
        self.events.append(Event(kind, at_ms, copy, **said))  # type: ignore[arg-type]  # fields of Event


_BY_PRODUCERS = (EventKind.BORN, EventKind.STORED, EventKind.DELAYED, EventKind.HALF)
# These speak of the delivery before.
_OF_LAST = (EventKind.NACKED, EventKind.RETURNED)
_WRITES_AGAIN = ("deliver_scheduled", "carry_scheduled")


def _lease_event(before: Range | None, after: Range) -> EventKind | None:
    """The event that a change of a range that is not done means for its messages."""
    if after.lease:
        is_same = before is not None and before.lease == after.lease
        return EventKind.EXTENDED if is_same else EventKind.RECEIVED
    if before is None or not before.lease:
        return EventKind.POSTPONED if before is None and not after.attempts else None
    if after.attempts < before.attempts:
        return EventKind.RETURNED
    return EventKind.NACKED


def _begins_behind(begun: pb.QueueLeases, queue_offset: int) -> bool:
    """Whether the group begins to receive behind this message."""
    return any(
        one.is_done and not one.start and one.end > queue_offset for one in begun.changes[:1]
    )


def _has_left(held: _Held, picture: Picture) -> bool:
    """Whether it was delivered, carried or taken back by then."""
    lane = picture.lanes.get(lane_of(held.due_ms))
    return (
        lane is None
        or lane.delivered >= held.place
        or lane.below_log_offset > held.batch_log_offset
        or held.first_log_offset in lane.recalled
    )


def _summary(group: str, place: _Place, now: Picture) -> GroupSummary:
    queue, queue_offset = place.copy.queue, place.copy.queue_offset
    view = place.views.get(group) or _View()
    position = now.position(group, queue) if now.shows(queue) else view.position
    standing, attempts = view.standing, view.lease.attempts if view.lease else 0
    behind = 0 if view.is_done else max(0, queue_offset - max(position, 0))
    return GroupSummary(group, standing, queue, position, behind, attempts)


def group_of_copy(topic: str) -> str:
    """Of a retry or dead-letter topic; empty: it is neither."""
    for prefix in (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return ""


def _producer_group(batch: Batch) -> str:
    try:
        return half_terms(batch.half).producer_group
    except DecodeError:
        return ""


def _opened(frame: bytes) -> Message | None:
    try:
        return Message.FromString(bytes(message_of_frame(frame)))
    except DecodeError:
        return None
