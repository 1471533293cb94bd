"""Invariants of all replicas, and the checks of a story's topics at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import Message as WireMessage

from mq.broker.retry.origins import opened
from mq.broker.state.machine import Machine
from mq.broker.state.state import State
from mq.store.consumequeue import UNIT_BYTES
from mq.store.identity import Identity
from mq.store.store import Store
from tests.sim.flow_member import DERIVED
from tests.sim.flow_world import Violation
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import DIRECTORY, files_below

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mq.store.reading import Run
    from mq.wire.v1.message_pb2 import Message
    from tests.sim.flow_member import Process
    from tests.sim.flow_world import World


class Seen(NamedTuple):
    """A message that consumers can see."""

    queue_id: int
    queue_offset: int
    log_offset: int
    message: Message

    @property
    def text(self) -> str:
        return self.message.body.decode()


def visible(process: Process, topic: str) -> list[Seen]:
    """All messages of a topic, by the word of one node."""
    found: list[Seen] = []
    extents = [one for one in process.store.queues.extents() if one.topic == topic]
    for _, queue_id, start, end in sorted(extents):
        at = start
        while at < end:
            result = process.store.read(topic, queue_id, at)
            found += seen_in(queue_id, result.runs)
            at = result.next_offset
    return found


def seen_in(queue_id: int, runs: Iterable[Run]) -> list[Seen]:
    found = []
    for run in runs:
        log_offset = run.log_offset
        sizes = run.sizes.tolist()
        for place, (message, size) in enumerate(zip(opened(run), sizes, strict=True)):
            found.append(Seen(queue_id, run.queue_offset + place, log_offset, message))
            log_offset += size
    return found


def check_replicas(world: World) -> None:
    """All nodes have the same state and the same queues; so has one that has nothing but the log.
    To be called when all have applied the same.
    """
    pictures = [_picture(member.running.machine) for member in world.members]
    for member, found in zip(world.members, pictures, strict=True):
        # Retention is each node's own: what one of them has dropped is not compared.
        ours, theirs = _since(pictures[0], found), _since(found, pictures[0])
        if ours != theirs:
            raise Violation(f"{member.name} differs from the others: {_difference(ours, theirs)}")
    at = world.rng.randrange(len(world.members))
    rebuilt = _rebuilt(world.members[at].running)
    if rebuilt != pictures[at]:
        different = _difference(pictures[at], rebuilt)
        raise Violation(f"the log alone makes something else: {different}")


class Picture(NamedTuple):
    raft_index: int
    log_offset: int
    state: bytes
    # Of each queue: its extent, and its units.
    queues: dict[tuple[str, int], tuple[int, int, bytes]]


def _picture(machine: Machine) -> Picture:
    store = machine.store
    queues = {}
    for topic, queue_id, start, end in store.queues.extents():
        queue = store.queues.get(topic, queue_id)
        assert queue is not None
        queues[topic, queue_id] = start, end, queue.read(start, end).tobytes()
    return Picture(store.applied_index, store.log.end_offset, machine.state.encode(), queues)


def _since(one: Picture, other: Picture) -> Picture:
    """The part of its queues that the other one has not dropped."""
    queues = {}
    for place, (start, end, units) in one.queues.items():
        first = max(start, other.queues[place][0]) if place in other.queues else start
        queues[place] = first, end, units[(first - start) * UNIT_BYTES :]
    return one._replace(queues=queues)


def _difference(one: Picture, other: Picture) -> str:
    if one[:2] != other[:2]:
        return f"applied {one[:2]} and {other[:2]}"
    for place in sorted(one.queues | other.queues):
        ours, theirs = one.queues.get(place), other.queues.get(place)
        if ours != theirs:
            extents = [each[:2] if each else None for each in (ours, theirs)]
            return f"queue {place} with {extents[0]} and {extents[1]}"
    state, second = State(), State()
    state.restore(one.state)
    second.restore(other.state)
    names = [name for name in vars(state) if _part(state, name) != _part(second, name)]
    return f"the state, in {names or 'its order'}"


def _part(state: State, name: str) -> str:
    encoded = getattr(state, name).encode()
    return repr(encoded if isinstance(encoded, bytes | WireMessage) else list(encoded))


def _rebuilt(process: Process) -> Picture:
    """The state rebuilt from a copy of its log."""
    vfs = FaultyVfs()
    source = process.member.vfs
    for path in files_below(source, DIRECTORY):
        if path.split("/")[2] not in DERIVED:
            vfs.make_dirs(path.rpartition("/")[0])
            vfs.write_all(path, source.read_all(path))
    state = State()
    store = Store(
        vfs,
        DIRECTORY,
        process.member.options.store(),
        Identity("mq", "set-0", "node-0"),
        broker_state=state.encode,
        background=False,
    )
    machine = Machine(state, store)
    for _ in machine.apply_through(process.store.applied_index):
        pass
    found = _picture(machine)
    store.abandon()
    return found
