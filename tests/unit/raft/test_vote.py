"""What `save` returned for is there after any crash; what cannot be trusted is refused."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from mq.errors import DiskFull, LogDamaged, StorageFailed
from mq.raft import vote as vote_module
from mq.raft.vote import SECTOR_BYTES, SLOT_BYTES, Vote, VoteFile, decode, encode
from mq.store.vfs import RealVfs
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.faulty_vfs import Operation

PATH = "/data/vote"
FILE_BYTES = 2 * SLOT_BYTES
State = tuple[int, str | None, bool]


def disk(seed: int = 0) -> FaultyVfs:
    vfs = FaultyVfs(seed)
    vfs.make_dirs("/data")
    vfs.sync_tree("/")
    return vfs


def open_vote(vfs: FaultyVfs) -> VoteFile:
    return VoteFile(vfs, PATH)


def state(vote: VoteFile) -> State:
    return vote.term, vote.voted_for, vote.must_catch_up


def saved(vfs: FaultyVfs, *states: State) -> VoteFile:
    vote = open_vote(vfs)
    for each in states:
        vote.save(*each)
    return vote


# -- saving


def test_a_node_without_a_file_has_seen_no_term() -> None:
    vfs = disk()
    assert state(open_vote(vfs)) == (0, None, False)
    assert vfs.file_size(PATH) == FILE_BYTES


def test_a_saved_vote_is_read_back() -> None:
    vfs = disk()
    states: list[State] = [
        (1, None, False),
        (1, "node-1", False),
        (2, "ä" * 63, True),
        (2, "n" * 127, False),
        (1 << 50, None, True),
    ]
    vote = open_vote(vfs)
    for each in states:
        vote.save(*each)
        assert state(vote) == each
        vfs.kill()
        vote = open_vote(vfs)
        assert state(vote) == each
    assert vfs.file_size(PATH) == FILE_BYTES


def test_a_term_never_goes_backwards() -> None:
    vfs = disk()
    vote = saved(vfs, (5, "a", False))
    with pytest.raises(ValueError, match="term 4 after term 5"):
        vote.save(4, None, must_catch_up=False)
    assert state(vote) == (5, "a", False)
    vfs.kill()
    with pytest.raises(ValueError, match="term 4 after term 5"):
        open_vote(vfs).save(4, None, must_catch_up=False)


@pytest.mark.parametrize("node_id", ["", "n" * 128, "ä" * 64])
def test_an_illegal_node_id_is_refused(node_id: str) -> None:
    vote = saved(disk(), (5, "a", False))
    with pytest.raises(ValueError, match="1 to 127 bytes"):
        vote.save(6, node_id, must_catch_up=False)
    assert state(vote) == (5, "a", False)
    vote.save(6, "b", must_catch_up=False)


def test_saving_what_is_saved_writes_nothing() -> None:
    vfs = disk()
    vote = saved(vfs, (5, "a", True))
    before = vfs.write_count, vfs.sync_count
    vote.save(5, "a", must_catch_up=True)
    assert (vfs.write_count, vfs.sync_count) == before
    vote.save(5, "a", must_catch_up=False)
    assert (vfs.write_count, vfs.sync_count) == (before[0] + 1, before[1] + 1)


def test_the_bytes_are_as_documented() -> None:
    vfs = disk()
    saved(vfs, (6, None, False), (7, "node-2", True))
    data = vfs.read_all(PATH)
    record = data[:SECTOR_BYTES]
    assert data[:SLOT_BYTES] == record * 8
    assert record[:4] == b"MQV\x01"
    assert record[8:16] == (4).to_bytes(8, "little")
    assert record[16:24] == (7).to_bytes(8, "little")
    assert record[24:32] == b"\x01\x06node-2"
    assert record[32:] == bytes(SECTOR_BYTES - 32)
    assert decode(data[SLOT_BYTES:]) == (3, 6, None, False)


def test_the_vote_file_works_on_a_real_disk(tmp_path: Path) -> None:
    path = f"{tmp_path}/vote"
    vote = VoteFile(RealVfs(), path)
    for term in range(1, 20):
        vote.save(term, f"node-{term % 3}", must_catch_up=term % 2 == 0)
    vote.close()
    with pytest.raises(StorageFailed):
        vote.save(20, None, must_catch_up=False)
    again = VoteFile(RealVfs(), path)
    assert state(again) == (19, "node-1", False)
    again.close()


# -- crashes


def one_life(seed: int) -> None:
    """Several crashes, power losses and kills, in the middle of a save too."""
    rng, vfs = random.Random(seed), disk(seed)
    acknowledged: State = (0, None, False)
    may_be = {acknowledged}
    for _ in range(6):
        vote = open_vote(vfs)
        assert state(vote) in may_be, f"seed {seed}"
        # Whatever was found is acted on, and must not change any more.
        acknowledged = state(vote)
        may_be = {acknowledged}
        is_failing = rng.random() < 0.6
        if is_failing:
            operation: Operation = rng.choice(["pwritev", "sync"])
            vfs.fail(operation, PATH, after=rng.randint(0, 3))
        for _ in range(rng.randint(0, 4)):
            term = acknowledged[0] + rng.randint(0, 2)
            wanted = term, rng.choice([None, "a", "node-b"]), rng.random() < 0.3
            may_be = {acknowledged, wanted}
            try:
                vote.save(*wanted)
            except StorageFailed:
                assert is_failing
                assert state(vote) == acknowledged
                break
            acknowledged = wanted
            may_be = {acknowledged}
        vfs._faults.clear()
        if rng.random() < 0.7:
            vfs.crash(rng, keep=rng.choice([0, 0.2, 0.5, 0.8, 1]))
        else:
            vfs.kill()


def test_a_saved_vote_survives_a_crash() -> None:
    for seed in range(500):
        one_life(seed)


@pytest.mark.parametrize("keep", [0, 0.2, 0.5, 0.8, 1])
def test_a_crash_during_creation_leaves_a_whole_file_or_no_file(keep: float) -> None:
    operations: list[Operation] = ["open", "truncate", "pwritev", "sync", "replace", "sync_dir"]
    for seed in range(40):
        for operation in operations:
            vfs = disk(seed)
            vfs.fail(operation, "/data")
            with pytest.raises(StorageFailed, match=PATH):
                open_vote(vfs)
            assert vfs._handles == {}
            vfs.crash(seed, keep)
            vote = open_vote(vfs)
            assert state(vote) == (0, None, False)
            vote.save(1, "a", must_catch_up=False)
            vfs.crash(seed, keep=0)
            assert state(open_vote(vfs)) == (1, "a", False)


@pytest.mark.parametrize("sectors", range(1, 8))
def test_a_vote_that_was_read_at_start_survives_a_power_loss(sectors: int) -> None:
    """A save that was killed between its write and its sync, or torn: the next start has seen it,
    and a power loss after that must not bring back what was before.
    """
    vfs = disk()
    saved(vfs, (5, "a", False))
    vfs.kill()
    old, before = (encode(Vote(number, 5, "a", must_catch_up=False)) for number in (4, 3))
    torn = encode(Vote(5, 6, "b", must_catch_up=False))[: sectors * SECTOR_BYTES]
    vfs.write_all(PATH, old + torn + before[len(torn) :])
    vote = open_vote(vfs)
    assert state(vote) == (6, "b", False)
    vfs.crash(0, keep=0)
    data = vfs.read_all(PATH)
    # And it stands in a whole slot now.
    assert data[:SLOT_BYTES] == data[:SECTOR_BYTES] * 8
    assert state(open_vote(vfs)) == (6, "b", False)


def test_a_killed_save_that_was_seen_is_durable() -> None:
    """Also when its sync failed, so that the disk has dropped it and another sync does nothing."""
    for is_failed in (False, True):
        vfs = disk()
        saved(vfs, (5, "a", False))
        file = vfs.open(PATH)
        file.pwritev([encode(Vote(3, 6, "b", must_catch_up=False))], SLOT_BYTES)
        if is_failed:
            vfs.fail("sync", PATH)
            with pytest.raises(OSError, match="vote"):
                file.sync()
        vfs.kill()
        assert state(open_vote(vfs)) == (6, "b", False)
        vfs.crash(0, keep=0)
        assert state(open_vote(vfs)) == (6, "b", False)


# -- disks that are full or fail


def test_a_full_disk_does_not_keep_a_node_from_voting() -> None:
    vfs = disk()
    vote = open_vote(vfs)
    vfs.capacity_bytes = 1
    for term in range(1, 10):
        vote.save(term, "a", must_catch_up=False)
    vfs.kill()
    assert state(open_vote(vfs)) == (9, "a", False)


def test_a_disk_without_room_for_the_file_is_full() -> None:
    vfs = disk()
    vfs.capacity_bytes = 100
    with pytest.raises(DiskFull, match=PATH):
        open_vote(vfs)
    vfs.capacity_bytes = None
    assert state(open_vote(vfs)) == (0, None, False)


@pytest.mark.parametrize("operation", ["pwritev", "sync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_save_is_final(operation: Operation, error: int) -> None:
    vfs = disk()
    vote = saved(vfs, (5, "a", False))
    vfs.fail(operation, PATH, error)
    with pytest.raises(StorageFailed, match=PATH):
        vote.save(6, "b", must_catch_up=False)
    assert state(vote) == (5, "a", False)
    for each in [(6, "b", False), (7, None, True), (5, "a", False)]:
        with pytest.raises(StorageFailed):
            vote.save(*each)
    vfs.kill()
    assert open_vote(vfs).term in (5, 6)


@pytest.mark.parametrize("operation", ["open", "pread", "pwritev", "sync", "sync_dir"])
def test_a_file_that_cannot_be_read_or_synced_stops_the_start(operation: Operation) -> None:
    vfs = disk()
    saved(vfs, (5, "a", False)).close()
    vfs.fail(operation, "/data")
    with pytest.raises(StorageFailed, match=PATH):
        open_vote(vfs)
    assert vfs._handles == {}
    assert state(open_vote(vfs)) == (5, "a", False)


# -- damage


def warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [dict(one.msg) for one in caplog.records if isinstance(one.msg, dict)]


def test_copies_that_are_damaged_are_written_again_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vfs = disk()
    saved(vfs, (5, "a", False), (6, "b", True)).close()
    assert warnings(caplog) == []
    for position in (SECTOR_BYTES + 20, 3 * SECTOR_BYTES + 8, SLOT_BYTES + 16):
        vfs.flip_bit(PATH, position)
    open_vote(vfs).close()
    (line,) = warnings(caplog)
    assert "vote written again" in str(line["event"])
    assert (line["file"], line["position"], line["copies"]) == (PATH, SECTOR_BYTES, 3)
    assert (line["term"], line["voted_for"]) == (6, "b")
    data = vfs.read_all(PATH)
    for start in (0, SLOT_BYTES):
        assert data[start : start + SLOT_BYTES] == data[start : start + SECTOR_BYTES] * 8
    assert state(open_vote(vfs)) == (6, "b", True)
    assert len(warnings(caplog)) == 1


def test_any_flipped_bit_costs_nothing() -> None:
    vfs = disk()
    saved(vfs, (5, "a", False), (6, "node-b", True)).close()
    good = vfs.read_all(PATH)
    rng = random.Random(0)
    bits = [(at, rng.randrange(8)) for at in range(0, FILE_BYTES, 61)]
    bits += [(start + at, bit) for start in (0, SLOT_BYTES) for at in range(40) for bit in range(8)]
    for position, bit in bits:
        vfs.write_all(PATH, good)
        vfs.flip_bit(PATH, position, bit)
        vote = open_vote(vfs)
        assert state(vote) == (6, "node-b", True)
        vote.save(7, "c", must_catch_up=False)
        vote.close()
        assert state(open_vote(vfs)) == (7, "c", False)
        vfs.kill()


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


OLD = encode(Vote(2, 5, "a", must_catch_up=False))
NEW = encode(Vote(3, 6, "b", must_catch_up=False))
NEWER = encode(Vote(4, 7, "c", must_catch_up=False))
FLIPPED = bytes(
    byte ^ (1 if at % SECTOR_BYTES == 16 else 0) for at, byte in enumerate(NEW)
)  # in the term, in every sector
# What the file holds, and what an opening makes of it: a state or the position of the damage.
DAMAGE: dict[str, tuple[bytes, State | int]] = {
    "as it should be": (OLD + NEW, (6, "b", False)),
    "the newest slot is the first": (NEWER + NEW, (7, "c", False)),
    "all but one sector of the newest lost": (
        OLD + bytes(7 * SECTOR_BYTES) + NEW[:SECTOR_BYTES],
        (6, "b", False),
    ),
    "all but one sector of the older lost": (
        OLD[:SECTOR_BYTES] + random_bytes(7 * SECTOR_BYTES) + NEW,
        (6, "b", False),
    ),
    "the newest lost": (OLD + bytes(SLOT_BYTES), SLOT_BYTES),
    "the newest other bytes": (OLD + random_bytes(SLOT_BYTES), SLOT_BYTES),
    "the newest with a wrong term in every sector": (OLD + FLIPPED, SLOT_BYTES),
    "the older lost": (bytes(SLOT_BYTES) + NEW, 0),
    "both lost": (bytes(FILE_BYTES), 0),
    "an empty file": (b"", 0),
    "a byte": (b"M", 0),
    "cut after the first slot": (OLD, SLOT_BYTES),
    "cut within the second slot, a sector stays": (
        OLD + NEW[: SECTOR_BYTES + 9],
        (6, "b", False),
    ),
    "cut within the first sector of the second slot": (OLD + NEW[:20], SLOT_BYTES),
    "a slot in the place of the other": (OLD + OLD, SLOT_BYTES),
    "slots changed places": (NEW + OLD, 0),
    "more behind it": (OLD + NEW + b"more", (6, "b", False)),
    "another version": (OLD + NEW.replace(b"MQV\x01", b"MQV\x02"), SLOT_BYTES),
}


@pytest.mark.parametrize(("data", "wanted"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_that_may_hide_a_newer_vote_is_refused(data: bytes, wanted: State | int) -> None:
    vfs = disk()
    vfs.write_all(PATH, data)
    if isinstance(wanted, int):
        with pytest.raises(LogDamaged, match="let it join again") as caught:
            open_vote(vfs)
        assert (caught.value.path, caught.value.position) == (PATH, wanted)
        assert vfs.read_all(PATH) == data
        assert vfs._handles == {}
        return
    vote = open_vote(vfs)
    assert state(vote) == wanted
    vote.save(8, "d", must_catch_up=True)
    vfs.crash(0, keep=0)
    assert state(open_vote(vfs)) == (8, "d", True)


def test_a_longest_record_fits_a_sector() -> None:
    longest = Vote((1 << 64) - 1, (1 << 64) - 1, "n" * 127, must_catch_up=True)
    assert len(encode(longest)) == SLOT_BYTES
    assert decode(encode(longest)[:SECTOR_BYTES]) == longest
    assert vote_module._HEADER.size == 26
