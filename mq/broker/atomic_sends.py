"""Exactly-once processing: what was made of some messages, and that they are done, as one entry.

An atom is decided on applied state alone, one turn after the other: its batches are all new or all
stored (then it was done, and is answered as before), its member has the queues, and the group still
stands where the work began. That last check is what makes work count once. Ownership is the
leader's memory: a member may lose a queue while its atom is under way, and the next one begins
where the group stood before it. Whichever of the two comes first moves the group, and the other is
refused.

Numbers of batches only answer the same request again. They do not tell work that was done twice:
two members cut the same messages into different batches.

Messages that failed too often are given up the same way: their copies among the group's dead
letters are one more batch of the atom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mq.broker.attribution import Actor, Attribution
from mq.broker.batched_decider import BatchedDecider, TurnDecision
from mq.broker.consumer.commits import Commits, Positions
from mq.broker.consumer.groups import Groups
from mq.broker.core import Core
from mq.broker.publishing import Publisher, Slot
from mq.broker.queue import Queue
from mq.broker.receive.service import ReceiveService
from mq.broker.retry.origins import batch_of
from mq.broker.retry.retries import attempts_before, failed_copy
from mq.broker.retry.retrying import MessagePosition, log_ranges, read_messages
from mq.broker.state.dedup import Producers, StoredAt
from mq.broker.state.machine import ProposedEntry
from mq.errors import (
    FlowControl,
    IllegalOffset,
    IllegalRequest,
    IllegalSequence,
    MessageTooLarge,
    MqError,
    TopicNotFound,
)
from mq.names import check_group, dead_letter_topic
from mq.store.batch import Batch
from mq.wire.v1.consumer_pb2 import Handle, QueuePosition
from mq.wire.v1.producer_pb2 import DeadLetterBatch
from mq.wire.v1.state_pb2 import Command, CommitPositions, GroupPositions

# Atomic sends of one turn share an entry up to this size.
_GROUP_BYTES = 1 << 20
BATCHES_MAX = 1_000
# Overhead of a batch in its entry, and of the command.
_HEAD_BYTES = 8
# Of the number of a member.
_ACTOR_BYTES = 8


class WorkStart(NamedTuple):
    """The start of the work on a queue: the known position of the group, and the first message.
    Messages between the two needed no work.
    """

    stood_at: int
    first: int


# One position a batch; filled when the entry is applied.
StoredBatches = list[StoredAt]
Keys = tuple[tuple[str, int], ...]


@dataclass(slots=True, frozen=True, eq=False)
class AtomicSend:
    """Batches, and the progress of the group's member in their input. `starts`: where the work
    began.
    """

    batches: Sequence[Batch]
    group: str = ""
    member_id: str = ""
    positions: Mapping[Queue, int] = field(default_factory=dict)
    starts: Mapping[Queue, WorkStart] = field(default_factory=dict)
    # That of the batches which the broker itself has made.
    letters: Batch | None = None

    @property
    def keys(self) -> list[tuple[str, int]]:
        return [(batch.producer_id, batch.sequence) for batch in self.batches]

    def commit(self) -> GroupPositions:
        wire = [
            QueuePosition(topic=queue.topic, queue_id=queue.queue_id, queue_offset=at)
            for queue, at in self.positions.items()
        ]
        return GroupPositions(group=self.group, positions=wire)

    def entry_bytes(self) -> int:
        """Upper bound of its size in an entry."""
        overhead_bytes = 2 * _HEAD_BYTES + _ACTOR_BYTES
        commit_bytes = self.commit().ByteSize() + overhead_bytes if self.positions else 0
        return commit_bytes + sum(len(batch.data) + _HEAD_BYTES for batch in self.batches)


class _AtomicTurn:
    """The entry that is being put together."""

    def __init__(self) -> None:
        self.answers: list[StoredBatches | MqError | None] = []
        self.accepted: list[tuple[AtomicSend, StoredBatches]] = []
        self.answer_by_key: dict[tuple[str, int], StoredBatches] = {}
        self.positions: Positions = {}
        self.size_bytes = 0

    def accept(self, atom: AtomicSend) -> StoredBatches:
        answer: StoredBatches = []
        self.accepted.append((atom, answer))
        self.answer_by_key.update(dict.fromkeys(atom.keys, answer))
        if atom.positions:
            self.positions.setdefault(atom.group, {}).update(atom.positions)
        self.size_bytes += atom.entry_bytes()
        return answer

    def entry(self, attribution: Attribution) -> ProposedEntry:
        batches = [batch for atom, _ in self.accepted for batch in atom.batches]
        commits = []
        for atom, _ in self.accepted:
            if atom.positions:
                commits.append(atom.commit())
                member = Actor(group=atom.group, member_id=atom.member_id)
                commits[-1].actors.extend(attribution.numbers([member]))
        command = Command(commit_positions=CommitPositions(groups=commits)) if commits else None
        return ProposedEntry(batches, command)


class AtomicSends:
    def __init__(
        self,
        core: Core,
        publisher: Publisher,
        groups: Groups,
        commits: Commits,
        receiving: ReceiveService,
    ) -> None:
        self._core = core
        self._publisher = publisher
        self._groups = groups
        self._commits = commits
        self._receiving = receiving
        config = core.settings.config
        self._entry_bytes_max = config.store.entry_bytes_max
        self._waiting_bytes_max = config.broker.in_flight_bytes
        self._waiting_bytes = 0
        # With handles, by the numbers of their batches.
        self._acknowledging: dict[Keys, asyncio.Future[StoredBatches]] = {}
        # No answer: there is something to wait for first.
        self._decider: BatchedDecider[AtomicSend, StoredBatches | None] = BatchedDecider(
            core.writer, core.leadership, self._decide
        )

    async def send(
        self,
        batches: Sequence[Batch],
        group: str = "",
        member_id: str = "",
        positions: Mapping[Queue, int] | None = None,
        handles: Sequence[Handle] = (),
        *,
        starts: Mapping[Queue, WorkStart] | None = None,
        dead_letters: DeadLetterBatch | None = None,
    ) -> list[StoredAt]:
        """Returns the places of the batches; all of it is durable when this returns.

        IllegalRequest, IllegalSequence, IllegalOffset, IllegalHandle, UnknownMember, NotAssigned,
        MessageTooLarge, FlowControl, and whatever is wrong with a queue: nothing was written. As
        `Consensus.propose` else; the same again does it once.
        """
        self._core.leadership.check()
        atom = AtomicSend(batches, group, member_id, positions or {}, starts or {})
        if dead_letters is not None:
            atom = await self._with_letters(atom, dead_letters)
        _check(atom, handles)
        _check_batches(atom)
        size_bytes = atom.entry_bytes()
        if size_bytes > self._entry_bytes_max:
            raise MessageTooLarge(
                f"an atom of {size_bytes} bytes: at most {self._entry_bytes_max} fit an entry"
            )
        if self._waiting_bytes and self._waiting_bytes + size_bytes > self._waiting_bytes_max:
            raise FlowControl(f"{self._waiting_bytes} bytes of atoms wait to be committed already")
        self._waiting_bytes += size_bytes
        try:
            return await self._send(atom, handles)
        except TopicNotFound:
            missing = {one.topic for one in batches if one.topic not in self._core.state.topics}
            if not self._core.settings.creates_topics or not missing:
                raise
            await self._core.catalog.ensure(sorted(missing))
            return await self._send(atom, handles)
        finally:
            self._waiting_bytes -= size_bytes

    async def _with_letters(self, atom: AtomicSend, wanted: DeadLetterBatch) -> AtomicSend:
        """With copies of these messages, which are done by it. MessageTooLarge."""
        check_group(atom.group)
        config, positions = self._core.settings.config, dict(atom.positions)
        failed = {MessagePosition.of(one): one for one in wanted.messages}
        for queue, queue_offset in failed:
            positions[queue] = max(positions.get(queue, 0), queue_offset + 1)
        topic = dead_letter_topic(atom.group)
        if topic not in self._core.state.topics:
            await self._core.catalog.ensure_internal(topic)
        await self._core.page_in.load(log_ranges(self._core.store, failed))
        copies = []
        for message in read_messages(self._core.store, failed, self._entry_bytes_max):
            queue = Queue(message.topic, message.queue_id)
            one = failed[MessagePosition(queue, message.queue_offset)]
            attempts = max(1, one.attempts) + attempts_before(atom.group, message)
            copies.append(failed_copy(message, config.node.broker_set, attempts, one.reason))
        if not copies:
            return replace(atom, positions=positions)
        number = {"producer_id": wanted.producer_id, "sequence": wanted.sequence}
        letters = batch_of(topic, 0, copies, **number)
        batches = [*atom.batches, letters]
        return replace(atom, batches=batches, positions=positions, letters=letters)

    async def _send(self, atom: AtomicSend, handles: Sequence[Handle]) -> list[StoredAt]:
        if handles:
            return await self._acknowledge(atom, handles)
        while True:
            # Reports of progress that are on their way could land behind it and undo it.
            if self._commits.is_pending(atom.group, atom.positions):
                await self._commits.flush()
            answer = await self._decider.submit(atom)
            if answer is not None:
                return answer

    # -- one turn ---------------------------------------------------------------------------------

    def _decide(self, atoms: list[AtomicSend]) -> TurnDecision[StoredBatches | None]:
        turn = _AtomicTurn()
        size_bytes_max = min(_GROUP_BYTES, self._entry_bytes_max)
        for atom in atoms:
            if turn.accepted and turn.size_bytes + atom.entry_bytes() > size_bytes_max:
                break
            try:
                turn.answers.append(self._judge(atom, turn))
            except MqError as error:
                turn.answers.append(error)
        if not turn.accepted:
            return TurnDecision(turn.answers)
        entry = turn.entry(self._core.writer.attribution)
        slots = [self._publisher.begin(batch) for batch in entry.batches]
        self._commits.begin_elsewhere(turn.positions)

        def over(error: MqError | None) -> None:
            self._commits.end_elsewhere()
            self._publisher.end(slots, entry.stored, error)
            stored = iter(entry.stored if error is None else ())
            for atom, answer in turn.accepted:
                answer.extend(one for _, one in zip(atom.batches, stored, strict=False))

        return TurnDecision(turn.answers, entry, over)

    def _judge(self, atom: AtomicSend, turn: _AtomicTurn) -> StoredBatches | None:
        """The answer once the entry is applied. None: not in this turn."""
        done = self._done(atom, turn)
        if done is not None:
            return done
        if self._commits.is_pending(atom.group, atom.positions):
            return None
        for batch in atom.batches:
            if batch is atom.letters:
                self._publisher.check_new_number(batch)
            else:
                self._publisher.check_new(batch)
        if atom.positions:
            self._groups.check_commit(atom.group, atom.member_id, atom.positions)
            if not atom.batches and self._is_there(atom, turn):
                return []  # nothing was made of them, and that was told before
            self._check_starts(atom, turn)
        return turn.accept(atom)

    def _done(self, atom: AtomicSend, turn: _AtomicTurn) -> StoredBatches | None:
        """The answer to an earlier request. Raises IllegalSequence if only a part of it is
        stored.
        """
        if not atom.batches:
            return None
        stored = _stored(atom, self._core.state.producers)
        if stored is not None:
            return stored
        same = [turn.answer_by_key.get(key) for key in atom.keys]
        if same[0] is not None and all(one is same[0] for one in same):
            return same[0]
        if any(one is not None for one in same):
            raise _in_parts()
        return None

    def _place(self, group: str, queue: Queue, turn: _AtomicTurn) -> int | None:
        """The position of the group, with the changes of this turn so far."""
        decided = turn.positions.get(group, {}).get(queue)
        return self._commits.position(group, queue) if decided is None else decided

    def _is_there(self, atom: AtomicSend, turn: _AtomicTurn) -> bool:
        return all(
            self._place(atom.group, queue, turn) == at for queue, at in atom.positions.items()
        )

    def _check_starts(self, atom: AtomicSend, turn: _AtomicTurn) -> None:
        for queue, queue_offset in atom.positions.items():
            place = self._place(atom.group, queue, turn)
            if place is None:
                continue  # the group has never been there
            stood_at, first = atom.starts.get(queue, (place, place))
            # Messages that retention dropped meanwhile need no work.
            oldest, _ = self._groups.extent(queue)
            is_there = stood_at <= place <= first or place < stood_at <= oldest
            if not is_there or queue_offset < max(place, first):
                raise IllegalOffset(
                    f"group {atom.group} stands at {place} in queue {queue.queue_id} of "
                    f"{queue.topic}: work on messages {first} to {queue_offset} was done by "
                    "another member, or the group was moved. Discard it and go on from there"
                )

    # -- what was received ------------------------------------------------------------------------

    async def _acknowledge(self, atom: AtomicSend, handles: Sequence[Handle]) -> list[StoredAt]:
        """Decided together with the requests of receivers."""
        keys = tuple(atom.keys)
        running = self._acknowledging.get(keys) if keys else None
        if running is None:
            atomic = _ReceivedSend(atom, self._core.state.producers, self._publisher)
            # A caller may be cancelled: the request stays known until its entry is applied.
            running = asyncio.ensure_future(
                self._receiving.ack_atomically(atom.group, handles, atomic)
            )
            self._acknowledging[keys] = running
            running.add_done_callback(lambda done: self._acknowledged(keys, done))
        return list(await asyncio.shield(running))

    def _acknowledged(self, keys: Keys, done: asyncio.Future[StoredBatches]) -> None:
        if self._acknowledging.get(keys) is done:
            del self._acknowledging[keys]
        if not done.cancelled():
            # Retrieve the exception so that asyncio does not warn: the caller may have gone.
            done.exception()


class _ReceivedSend:
    """The batches that are written with acknowledgements: `AtomicBatches`."""

    def __init__(self, atom: AtomicSend, producers: Producers, publisher: Publisher) -> None:
        self._atom = atom
        self._producers = producers
        self._publisher = publisher
        self._slots: list[Slot] = []

    @property
    def batches(self) -> Sequence[Batch]:
        return self._atom.batches

    def stored_before(self) -> StoredBatches | None:
        stored = _stored(self._atom, self._producers)
        if stored is None:
            for batch in self.batches:
                self._publisher.check_new(batch)
        return stored

    def begin(self) -> None:
        self._slots = [self._publisher.begin(batch) for batch in self.batches]

    def end(self, stored: StoredBatches, error: MqError | None) -> None:
        self._publisher.end(self._slots, stored, error)


def _stored(atom: AtomicSend, producers: Producers) -> StoredBatches | None:
    """The positions of the batches if they are stored. Raises IllegalSequence if only some are."""
    found = [producers.find(*key) for key in atom.keys]
    stored = [one for one in found if one is not None]
    if stored and len(stored) < len(found):
        raise _in_parts()
    return stored or None


def _in_parts() -> IllegalSequence:
    return IllegalSequence(
        "some of the batches are stored, others are not: send the same batches together, with the "
        "numbers they had"
    )


def _check(atom: AtomicSend, handles: Sequence[Handle]) -> None:
    """Raises for errors that do not depend on the state."""
    if not atom.batches and not atom.positions and not handles:
        raise IllegalRequest("nothing to send, to commit or to acknowledge")
    if atom.positions and handles:
        raise IllegalRequest("positions and handles: a group either subscribes or receives")
    if atom.positions or handles:
        check_group(atom.group)
    if atom.starts.keys() - atom.positions.keys():
        raise IllegalRequest("starts has a queue that positions has not")
    if any(stood_at > first for stood_at, first in atom.starts.values()):
        raise IllegalRequest("in starts, stood_at is not behind the first message")


def _check_batches(atom: AtomicSend) -> None:
    if len(atom.batches) > BATCHES_MAX:
        raise IllegalRequest(f"{len(atom.batches)} batches in one atom: at most {BATCHES_MAX}")
    for batch in atom.batches:
        if batch.is_held or batch.delay_ms:
            raise IllegalRequest("what is sent atomically can be neither delayed nor half")
        if not batch.producer_id or not batch.sequence:
            raise IllegalRequest(
                "each batch needs a producer_id and a sequence, so that it can be sent again"
            )
    if len(set(atom.keys)) < len(atom.batches):
        raise IllegalSequence("two batches of the request have the same sequence")
