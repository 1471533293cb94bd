"""Both checkpoints come back as they were written; anything else is refused, never believed."""

from __future__ import annotations

import errno
import zlib

import pytest
from google.protobuf.empty_pb2 import Empty
from hypothesis import example, given
from hypothesis import strategies as st

from mq.store import checkpoint
from mq.store.checkpoint import DerivedState
from mq.store.consumequeue import QueueExtent, SavedQueue
from mq.store.keyindex import IndexPosition
from mq.wire.v1.log_pb2 import Checkpoint, DerivedCheckpoint, TopicQueues
from tests.support.faulty_vfs import FaultyVfs

PATH = "/data/checkpoint"
U64 = st.integers(0, (1 << 64) - 1)
EXTENTS = st.lists(
    st.builds(
        QueueExtent,
        st.sampled_from(["orders", "bills", "%RETRY%group", "a|b-c_d"]),
        st.integers(0, 65_535),
        U64,
        U64,
    ),
    max_size=20,
    unique_by=lambda extent: extent[:2],
)
U32 = st.integers(0, (1 << 32) - 1)
SAVED = EXTENTS.flatmap(
    lambda extents: st.tuples(*(st.builds(SavedQueue, *map(st.just, one), U32) for one in extents))
).map(list)
NAMES = st.integers(0, 1 << 60).map("{:020d}".format)
POSITIONS = st.builds(
    IndexPosition, st.lists(NAMES, max_size=3).map(tuple), NAMES | st.just(""), U64, U64, U32
)
STATES = st.builds(DerivedState, U64, U64, SAVED, POSITIONS, st.binary(max_size=50))


def disk() -> FaultyVfs:
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    vfs.sync_tree("/")
    return vfs


def file_of(payload: bytes) -> bytes:
    """A file that is whole, whatever is in it."""
    return checkpoint.MAGIC + zlib.crc32(payload).to_bytes(4, "little") + payload


def saved(state: DerivedState) -> bytes:
    vfs = disk()
    checkpoint.save(vfs, PATH, state)
    return vfs.read_all(PATH)


SOME = DerivedState(
    7,
    2,
    [SavedQueue("orders", 1, 3, 9, 8)],
    IndexPosition(("0" * 20,), "1" * 20, 5, 9, 7),
    b"state",
)


@given(state=STATES)
def test_a_file_comes_back_as_it_was_saved(state: DerivedState) -> None:
    vfs = disk()
    checkpoint.save(vfs, PATH, state)
    loaded = checkpoint.load(vfs, PATH)
    assert loaded == state._replace(queues=sorted(state.queues))


def test_a_missing_checkpoint_is_none() -> None:
    assert checkpoint.load(disk(), PATH) is None


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_saved_file_survives_a_power_loss(keep: float) -> None:
    vfs = disk()
    checkpoint.save(vfs, PATH, SOME)
    vfs.crash(1, keep)
    assert checkpoint.load(vfs, PATH) == SOME


def test_a_power_loss_in_the_middle_leaves_the_old_or_the_new() -> None:
    new = SOME._replace(raft_index=8, broker_state=bytes(2000))
    for seed in range(60):
        vfs = disk()
        checkpoint.save(vfs, PATH, SOME)
        vfs.fail("sync_dir", "/data", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            checkpoint.save(vfs, PATH, new)
        vfs.crash(seed, 0.5)
        assert checkpoint.load(vfs, PATH) in (SOME, new)


@given(data=st.binary(max_size=200))
def test_random_bytes_are_no_checkpoint(data: bytes) -> None:
    assert checkpoint.decode(data) is None
    assert checkpoint.decode(checkpoint.MAGIC + data) is None


@given(
    state=STATES,
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_anywhere_is_noticed(state: DerivedState, place: float, bit: int) -> None:
    data = bytearray(saved(state))
    data[int(place * len(data))] ^= 1 << bit
    assert checkpoint.decode(bytes(data)) is None


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_short_file_is_no_checkpoint(cut: float) -> None:
    data = saved(SOME)
    assert checkpoint.decode(data[: int(cut * len(data))]) is None


@given(payload=st.binary(max_size=100))
def test_a_whole_file_of_nonsense_raises_nothing(payload: bytes) -> None:
    """Bytes that happen to parse are a state; what counts is that a start goes on."""
    decoded = checkpoint.decode(file_of(payload))
    assert decoded is None or isinstance(decoded, DerivedState)


@pytest.mark.parametrize(
    "topics",
    [
        TopicQueues(topic="t", queue_ids=[1, 2], starts=[0], ends=[1, 1]),
        TopicQueues(topic="t", queue_ids=[1], starts=[0], ends=[]),
        TopicQueues(topic="t", ends=[1]),
        TopicQueues(topic="t", queue_ids=[1], starts=[0], ends=[1]),
    ],
)
def test_lists_of_different_lengths_are_refused(topics: TopicQueues) -> None:
    payload = DerivedCheckpoint(raft_index=1, topics=[topics]).SerializeToString()
    assert checkpoint.decode(file_of(payload)) is None


@given(queues=EXTENTS, broker_state=st.binary(max_size=50))
def test_an_entry_gives_each_queue_its_end_as_start(
    queues: list[QueueExtent], broker_state: bytes
) -> None:
    payload = checkpoint.encode_entry(queues, broker_state)
    found, state = checkpoint.decode_entry(memoryview(b"".join(payload)))
    assert found == [extent._replace(start=extent.end) for extent in sorted(queues)]
    assert state == broker_state


@given(queues=EXTENTS, data=st.data())
def test_an_entry_is_the_same_bytes_on_every_replica(
    queues: list[QueueExtent], data: st.DataObject
) -> None:
    """Whatever the order in which queues were made, and wherever they start there."""
    other = [extent._replace(start=0) for extent in data.draw(st.permutations(queues))]
    assert checkpoint.encode_entry(queues, b"x") == checkpoint.encode_entry(other, b"x")


@given(payload=st.binary(max_size=200))
@example(payload=b"\x00\x00")
@example(payload=b"\xf8\xff\xff\xff\x7f\x00")
def test_an_entry_of_random_bytes_is_a_value_error_or_parses(payload: bytes) -> None:
    """But for the state in it, which is the broker's to read."""
    try:
        checkpoint.decode_entry(memoryview(payload))
    except ValueError:
        return
    Empty.FromString(payload)


def test_an_entry_with_lists_of_different_lengths_is_a_value_error() -> None:
    broken = Checkpoint(topics=[TopicQueues(topic="t", queue_ids=[1, 2], ends=[1])])
    with pytest.raises(ValueError, match=r"zip\(\)"):
        checkpoint.decode_entry(memoryview(broken.SerializeToString()))
