"""Small stores for tests: settings that fill files after a few messages, batches in one line, and
what is on disk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mq.config import StoreConfig
from mq.errors import SegmentFull
from mq.store.batch import Batch, accept, encode_payload, prepare
from mq.store.commitlog import NewEntry
from mq.store.format import Kind
from mq.store.holding import default_held_queue
from mq.store.identity import Identity
from mq.store.rebuilding import DefaultHeldReplay, StartHeldReplay
from mq.store.store import Store
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mq.store.logreader import EntryRef
    from mq.store.reading import ReadResult
    from mq.store.vfs import Vfs

DIRECTORY = "/data"
NODE = Identity("mq", "set-0", "node-0")
NOW_MS = 1_000_000
UNITS_PER_FILE = 16
SMALL = StoreConfig(
    segment_bytes=4096,
    entry_bytes_max=1 << 20,
    checkpoint_log_bytes=2048,
    verify_bytes=1 << 20,
    queue_file_units=UNITS_PER_FILE,
    index_slots=8,
    index_items=32,
)


def small_config(**changes: Any) -> StoreConfig:
    return msgspec.structs.replace(SMALL, **changes)


def open_store(
    vfs: Vfs,
    config: StoreConfig = SMALL,
    broker_state: Callable[[], bytes] = bytes,
    start_held_replay: StartHeldReplay = DefaultHeldReplay,
) -> Store:
    """Without threads, because `FaultyVfs` is for one."""
    return Store(
        vfs,
        DIRECTORY,
        config,
        NODE,
        broker_state=broker_state,
        start_held_replay=start_held_replay,
        background=False,
    )


def new_store(config: StoreConfig = SMALL) -> tuple[FaultyVfs, Store]:
    vfs = FaultyVfs()
    return vfs, open_store(vfs, config)


def messages_of(count: int, *, size: int = 20, seed: int = 0, **fields: Any) -> list[Message]:
    rng = random.Random(seed)
    return [Message(body=b"%d." % i + rng.randbytes(size), **fields) for i in range(count)]


def batch(messages: Sequence[Message], topic: str = "orders", queue_id: int = 0) -> Batch:
    wire = WireBatch(topic=topic, queue_id=queue_id, messages=messages)
    return accept(prepare(wire.SerializeToString()), 1 << 20)


def put(store: Store, *batches: Batch, now_ms: int = NOW_MS) -> EntryRef:
    """Appended, durable and visible, as one entry."""
    ref = append(store, *batches, now_ms=now_ms)
    store.log.sync()
    apply_through(store, ref.raft_index)
    return ref


def append(store: Store, *batches: Batch, now_ms: int = NOW_MS, term: int = 0) -> EntryRef:
    """One entry; a full segment makes it wait for everything before."""
    try:
        return append_entry(store, batches, now_ms, term)
    except SegmentFull:
        store.log.sync()
        apply_all(store)
        return append_entry(store, batches, now_ms, term)


def append_entry(
    store: Store, batches: Sequence[Batch], now_ms: int = NOW_MS, term: int = 0
) -> EntryRef:
    """As replication writes it. SegmentFull: everything before has to be applied."""
    store.check_writable()
    entry = NewEntry(Kind.MESSAGES, term, now_ms, encode_payload(batches))
    try:
        (ref,) = store.log.append([entry])
    except SegmentFull:
        if store.applied_index != store.log.last_index:
            raise
        roll(store, now_ms, term)
        (ref,) = store.log.append([entry])
    store.appended(ref, batches)
    return ref


def roll(store: Store, now_ms: int = NOW_MS, term: int = 0) -> EntryRef:
    """Opens a segment with a checkpoint, as replication does; the log before it is applied."""
    assert store.applied_index == store.log.last_index
    payload = store.checkpoint_payload()
    ref = store.log.roll(NewEntry(Kind.CHECKPOINT, term, now_ms, payload))
    store.appended(ref, ())
    return ref


def truncate(store: Store, from_index: int) -> None:
    """Removes entries that will never be committed."""
    store.forget(from_index)
    store.log.truncate(from_index)


class Applied(NamedTuple):
    """An entry that is visible: its batches with the queue offset of the first message of each; -1
    for a held one.
    """

    ref: EntryRef
    queue_offsets: list[int]
    batches: list[Batch]


def apply_through(store: Store, raft_index: int) -> list[Applied]:
    """Applies the batches of entries, without a broker that knows more of them."""
    found = []
    for ref, batches, *_ in store.committed(raft_index):
        found.append(Applied(ref, [], [one for one, _ in batches]))
        for each, log_offset in batches:
            if each.is_held:
                store.derived.put_held(each, log_offset, default_held_queue(each))
                found[-1].queue_offsets.append(-1)
            else:
                queue_offset = store.derived.put(each, log_offset, ref.stored_at_ms)
                found[-1].queue_offsets.append(queue_offset)
        store.set_applied(ref)
    return found


class StoreMachine:
    """A store as the state machine of replication; proposals come with their batches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.checkpoint_payload = store.checkpoint_payload
        self.check_writable = store.check_writable
        self.forget = store.forget
        self.start_over = store.start_over

    @property
    def applied_index(self) -> int:
        return self._store.applied_index

    def appended(self, ref: EntryRef, context: Sequence[Batch]) -> None:
        self._store.appended(ref, context)

    def apply_through(self, raft_index: int) -> None:
        apply_through(self._store, raft_index)


def fill(store: Store, segments: int, *, now_ms: int = NOW_MS) -> list[Message]:
    """Messages of one queue until there are so many segments; all of them visible."""
    sent: list[Message] = []
    while len(store.log.segments()) < segments:
        news = messages_of(5, size=100, seed=len(sent), keys=[f"k{len(sent) % 7}"])
        put(store, batch(news), now_ms=now_ms + len(sent))
        sent += news
    return sent


def reopen(vfs: FaultyVfs, config: StoreConfig = SMALL) -> Store:
    """After a kill, with all of the log applied."""
    vfs.kill()
    return apply_all(open_store(vfs, config))


def apply_all(store: Store) -> Store:
    apply_through(store, store.log.last_index)
    return store


def parsed(frames: Iterable[bytes | memoryview]) -> list[Message]:
    """The messages that a client parses from runs put one after another."""
    return list(WireBatch.FromString(b"".join(frames)).messages)


def messages_in(result: ReadResult) -> list[Message]:
    return parsed(run.frames for run in result.runs)


def read_all(store: Store, topic: str = "orders", queue_id: int = 0) -> list[Message]:
    """All messages of a queue, from its start on."""
    queue = store.queues.get(topic, queue_id)
    found: list[Message] = []
    at = queue.start if queue else 0
    while queue and at < queue.end:
        result = store.read(topic, queue_id, at)
        found += messages_in(result)
        at = result.next_offset
    return found


def files_below(vfs: FaultyVfs, path: str) -> list[str]:
    """Paths of the files below a directory, or the path itself when it is a file."""
    if not vfs.exists(path):
        return []
    try:
        names = vfs.list_dir(path)
    except NotADirectoryError:
        return [path]
    return [found for name in names for found in files_below(vfs, f"{path}/{name}")]


def queue_files(vfs: FaultyVfs, topic: str = "orders", queue_id: int = 0) -> list[int]:
    """Queue offsets that the files of a queue start with."""
    return [int(name) for name in vfs.list_dir(f"{DIRECTORY}/consumequeue/{topic}/{queue_id}")]
