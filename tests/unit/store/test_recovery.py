"""A start on what a disk may hold: torn tails are cut, damage is refused, `.idx` files are mended.

The table has a row for each kind of harm: what it does to the files of `build`, and what the start
makes of it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from mq.errors import LogDamaged
from mq.store.format import HEADER_BYTES, IDX_HEADER_BYTES, Kind, encode_header, segment_name
from tests.support.logs import (
    DIRECTORY,
    Content,
    append,
    checkpoint,
    content,
    disk,
    entry_bytes,
    files,
    new_log,
    open_log,
    payloads,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.store.commitlog import CommitLog
    from tests.support.faulty_vfs import FaultyVfs

PAYLOADS = [[b"a" * 100, b"b" * 700], [b"c" * 100, b"d" * 700], [b"e" * 100, b"f" * 700]]
CHECKPOINT_BYTES = entry_bytes(b"state")
SECOND = CHECKPOINT_BYTES  # where the second entry of a segment starts
THIRD = SECOND + entry_bytes(b"a" * 100)
END = THIRD + entry_bytes(b"a" * 700)
BASES = [0, END, 2 * END]
LOGS = [f"{DIRECTORY}/{segment_name(base)}.log" for base in BASES]
IDXES = [path.replace(".log", ".idx") for path in LOGS]


def build(seed: int = 0) -> tuple[FaultyVfs, list[Content]]:
    """Three segments of three entries, all synced, and the process is gone."""
    vfs = disk(seed)
    log = open_log(vfs)
    segments_of(log, *PAYLOADS)
    everything = content(log)
    vfs.kill()
    return vfs, everything


def warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """The fields of what was logged as a warning."""
    records = [record for record in caplog.records if record.levelname == "WARNING"]
    return [dict(record.msg) for record in records if isinstance(record.msg, dict)]


def flip(path: str, position: int, bit: int = 0) -> Callable[[FaultyVfs], None]:
    return lambda vfs: vfs.flip_bit(path, position, bit)


def cut(path: str, size: int) -> Callable[[FaultyVfs], None]:
    return lambda vfs: vfs.truncate_file(path, size)


def zero(path: str, start: int, end: int) -> Callable[[FaultyVfs], None]:
    def damage(vfs: FaultyVfs) -> None:
        data = bytearray(vfs.read_all(path))
        data[start:end] = bytes(end - start)
        vfs.write_all(path, data)

    return damage


def put(path: str, data: bytes) -> Callable[[FaultyVfs], None]:
    return lambda vfs: vfs.write_all(path, data)


def behind(data: bytes) -> Callable[[FaultyVfs], None]:
    """Behind the last entry, where the space is prepared."""

    def damage(vfs: FaultyVfs) -> None:
        raw = bytearray(vfs.read_all(LOGS[2]))
        raw[END : END + len(data)] = data
        vfs.write_all(LOGS[2], raw)

    return damage


def without(*paths: str) -> Callable[[FaultyVfs], None]:
    def damage(vfs: FaultyVfs) -> None:
        for path in paths:
            vfs.remove(path)
        vfs.sync_dir(DIRECTORY)

    return damage


def both(*damages: Callable[[FaultyVfs], None]) -> Callable[[FaultyVfs], None]:
    def damage(vfs: FaultyVfs) -> None:
        for one in damages:
            one(vfs)

    return damage


def entry(raft_index: int, kind: Kind = Kind.MESSAGES) -> bytes:
    return bytes(encode_header(kind, raft_index, 1, 1000, [], 0))


class Torn(NamedTuple):
    """The log keeps this many entries; this much was cut, and so much of it had been synced."""

    name: str
    damage: Callable[[FaultyVfs], None]
    kept: int
    cut_bytes: int
    lost_bytes: int


LAST = entry_bytes(b"f" * 700)
TORN = [
    Torn("cut in the payload", cut(LOGS[2], END - 1), 8, LAST - 1, LAST),
    Torn("cut in the header", cut(LOGS[2], THIRD + 17), 8, 17, LAST),
    Torn("cut between entries", cut(LOGS[2], THIRD), 8, 0, LAST),
    Torn("zeroed sector", zero(LOGS[2], 512, 1024), 8, LAST - (END - 512), LAST),
    Torn("zeroed header", zero(LOGS[2], THIRD, THIRD + HEADER_BYTES), 8, LAST, LAST),
    Torn("zeroed altogether", zero(LOGS[2], THIRD, END), 8, 0, LAST),
    Torn("flipped bit in the payload", flip(LOGS[2], END - 1), 8, LAST, LAST),
    Torn("flipped bit in the magic", flip(LOGS[2], THIRD), 8, LAST, LAST),
    Torn("flipped bit in the crc", flip(LOGS[2], THIRD + 4), 8, LAST, LAST),
    Torn("flipped bit in the kind", flip(LOGS[2], THIRD + 8), 8, LAST, LAST),
    Torn("longer length", flip(LOGS[2], THIRD + 15, 7), 8, LAST, LAST),
    Torn("shorter length", flip(LOGS[2], THIRD + 12), 8, LAST, LAST),
    Torn("garbage behind the end", behind(b"x" * 50), 9, 50, 0),
    Torn("last segment of no bytes", cut(LOGS[2], 0), 6, 0, END),
    Torn("last segment of garbage", put(LOGS[2], b"garbage" * 10), 6, 70, END),
    Torn("last segment of zeros", put(LOGS[2], bytes(5000)), 6, 0, END),
    Torn("last segment gone", without(LOGS[2], IDXES[2]), 6, 0, 0),
    Torn("idx gone too", both(cut(LOGS[2], END - 1), without(IDXES[2])), 8, LAST - 1, 0),
]


@pytest.mark.parametrize("row", TORN, ids=[row.name for row in TORN])
def test_a_torn_tail_is_cut_with_a_warning_that_names_it(
    row: Torn, caplog: pytest.LogCaptureFixture
) -> None:
    vfs, everything = build()
    row.damage(vfs)
    log = open_log(vfs)
    assert content(log) == everything[: row.kept]
    assert log.recovery.cut_bytes == row.cut_bytes
    assert log.recovery.synced_bytes_lost == row.lost_bytes
    if row.cut_bytes or row.lost_bytes:
        (warning,) = (one for one in warnings(caplog) if one["event"] == "torn tail cut")
        assert (warning["bytes"], warning["synced_bytes_lost"]) == (row.cut_bytes, row.lost_bytes)
        assert (warning["file"], warning["position"]) == (
            LOGS[2],
            log.end_offset - BASES[2] if row.kept > 6 else 0,
        )
    else:
        assert not warnings(caplog)
    caplog.clear()
    _check_that_it_goes_on(vfs, log)


def _check_that_it_goes_on(vfs: FaultyVfs, log: CommitLog) -> None:
    """Appends and a second start, after a power loss, that finds nothing to say."""
    before = content(log)
    append(log, b"more")
    log.sync()
    log.roll(checkpoint())
    log.sync()
    vfs.crash(0, keep=0)
    log = open_log(vfs)
    assert log.recovery.reason == ""
    assert content(log)[:-2] == before
    assert content(log)[-2].payload == b"more"
    assert log.recovery.cut_bytes == log.recovery.synced_bytes_lost == 0


class Damaged(NamedTuple):
    name: str
    damage: Callable[[FaultyVfs], None]
    path: str
    position: int


DAMAGED = [
    Damaged(f"{what} of {entry} in the {which} segment", flip(path, position + at), path, position)
    for which, path in [("last", LOGS[2]), ("sealed", LOGS[1]), ("first", LOGS[0])]
    for entry, position in [("checkpoint", 0), ("entry", SECOND)]
    for what, at in [
        ("magic", 0),
        ("crc", 4),
        ("kind", 8),
        ("zero", 9),
        ("length", 12),
        ("index", 16),
        ("term", 24),
        ("time", 32),
        ("payload", HEADER_BYTES),
    ]
] + [
    Damaged("giant length in the middle", flip(LOGS[2], SECOND + 15, 7), LOGS[2], SECOND),
    Damaged("zeroed sector in the middle", zero(LOGS[1], 0, 512), LOGS[1], 0),
    Damaged("zeroed header in the middle", zero(LOGS[2], SECOND, SECOND + 40), LOGS[2], SECOND),
    Damaged("last entry of a sealed segment", flip(LOGS[1], END - 1), LOGS[1], THIRD),
    Damaged("sealed segment cut short", cut(LOGS[1], END - 1), LOGS[1], THIRD),
    Damaged("sealed segment cut between entries", cut(LOGS[1], THIRD), LOGS[1], THIRD),
    Damaged("sealed segment of no bytes", cut(LOGS[1], 0), LOGS[1], 0),
    Damaged("middle segment gone", without(LOGS[1], IDXES[1]), LOGS[0], END),
    Damaged("log of the middle segment gone", without(LOGS[1]), LOGS[0], END),
    Damaged(
        "middle of the last segment, and its idx gone",
        both(flip(LOGS[2], SECOND), without(IDXES[2])),
        LOGS[2],
        SECOND,
    ),
    Damaged(
        "middle of the last segment, and its mark damaged",
        both(flip(LOGS[2], SECOND), flip(IDXES[2], 8)),
        LOGS[2],
        SECOND,
    ),
    Damaged(
        "segment of another log",
        put(LOGS[2], entry(99, Kind.CHECKPOINT) + entry(100)),
        LOGS[2],
        0,
    ),
    Damaged(
        "end of a sealed segment and start of the next",
        both(flip(LOGS[1], THIRD), flip(LOGS[2], 0)),
        LOGS[1],
        THIRD,
    ),
    Damaged("name of no segment", put(f"{DIRECTORY}/1.log", b""), f"{DIRECTORY}/1.log", 0),
    Damaged("foreign name", put(f"{DIRECTORY}/old.log", b""), f"{DIRECTORY}/old.log", 0),
]


@pytest.mark.parametrize("row", DAMAGED, ids=[row.name for row in DAMAGED])
def test_damage_to_what_was_synced_is_refused_and_left_alone(row: Damaged) -> None:
    vfs, _ = build()
    row.damage(vfs)
    before = files(vfs)
    for _ in range(2):
        with pytest.raises(LogDamaged) as caught:
            open_log(vfs)
        assert (caught.value.path, caught.value.position) == (row.path, row.position)
        assert row.path in str(caught.value)
        assert str(row.position) in str(caught.value)
        assert files(vfs) == before


class Mended(NamedTuple):
    name: str
    damage: Callable[[FaultyVfs], None]


MENDED = [
    Mended(f"{what} of the {which} segment", damage)
    for which, path in [("last", IDXES[2]), ("sealed", IDXES[1]), ("first", IDXES[0])]
    for what, damage in [
        ("missing idx", without(path)),
        ("empty idx", cut(path, 0)),
        ("idx cut in the header", cut(path, 20)),
        ("idx cut behind the header", cut(path, IDX_HEADER_BYTES)),
        ("idx cut in a record", cut(path, IDX_HEADER_BYTES + 30)),
        ("damaged mark", flip(path, 8)),
        ("garbage idx", put(path, b"garbage" * 100)),
        ("wrong position", flip(path, IDX_HEADER_BYTES + 24)),
        ("wrong length", flip(path, IDX_HEADER_BYTES + 28)),
        ("wrong term", flip(path, IDX_HEADER_BYTES + 32)),
        ("wrong time", flip(path, IDX_HEADER_BYTES + 40)),
        ("idx of zeros", zero(path, 0, IDX_HEADER_BYTES + 72)),
    ]
] + [
    Mended("idx of another segment", lambda vfs: vfs.write_all(IDXES[1], vfs.read_all(IDXES[0]))),
    Mended("idx without a log", put(f"{DIRECTORY}/{segment_name(99)}.idx", b"x")),
    Mended("all idx files missing", without(*IDXES)),
    Mended("leftover of a write", put(f"{DIRECTORY}/something.new", b"x")),
]


@pytest.mark.parametrize("row", MENDED, ids=[row.name for row in MENDED])
def test_the_idx_is_made_again_from_the_log(row: Mended) -> None:
    vfs, everything = build()
    before = {name: data[: IDX_HEADER_BYTES + 72] for name, data in files(vfs, ".idx").items()}
    logs = files(vfs, ".log")
    row.damage(vfs)
    log = open_log(vfs)
    assert content(log) == everything
    assert [log.index_at(log.ref(index).log_offset) for index in range(1, 10)] == [*range(1, 10)]
    assert log.recovery.cut_bytes == 0
    assert files(vfs, ".log") == logs
    after = {name: data[: IDX_HEADER_BYTES + 72] for name, data in files(vfs, ".idx").items()}
    assert after == before
    # And durably: the next start may trust the sealed ones without reading the log.
    vfs.crash(0, keep=0)
    log = open_log(vfs, verify_bytes=0)
    assert content(log) == everything
    assert log.recovery.checked_bytes == END
    _check_that_it_goes_on(vfs, log)


@pytest.mark.parametrize("damage", [without(IDXES[2]), flip(IDXES[2], 8)], ids=["gone", "flipped"])
def test_after_a_mark_is_made_anew_a_crash_is_still_no_damage(
    damage: Callable[[FaultyVfs], None],
) -> None:
    for seed in range(30):
        vfs, everything = build(seed)
        damage(vfs)
        log = open_log(vfs)
        append(log, *[bytes([letter]) * 500 for letter in b"wxyz"])
        vfs.crash(seed)
        assert content(open_log(vfs))[:9] == everything, f"seed {seed}"


def test_without_its_first_segments_the_log_starts_later() -> None:
    vfs, everything = build()
    without(LOGS[0], IDXES[0])(vfs)
    log = open_log(vfs)
    assert (log.first_index, log.start_offset) == (4, BASES[1])
    assert content(log) == everything[3:]
    _check_that_it_goes_on(vfs, log)


@pytest.mark.parametrize("zero_ahead", [False, True])
def test_prepared_space_is_no_entry(zero_ahead: bool, caplog: pytest.LogCaptureFixture) -> None:
    vfs = disk()
    log = new_log(vfs, segment_bytes=1 << 20, zero_ahead=zero_ahead)
    append(log, b"a")
    log.sync()
    vfs.crash(0, keep=1)
    (size,) = map(len, files(vfs, ".log").values())
    assert size == 1 << 20
    log = open_log(vfs)
    assert not warnings(caplog)
    assert payloads(log) == [b"a"]
    assert log.recovery.cut_bytes == 0


@pytest.mark.parametrize("position", [SECOND, SECOND + 8, SECOND + 12, SECOND + HEADER_BYTES])
def test_harm_to_what_was_never_synced_is_cut_with_all_behind_it(position: int) -> None:
    vfs = disk()
    log = new_log(vfs)
    durable = log.sync()
    append(log, b"a" * 100, b"b", b"c")
    log.roll(checkpoint())
    append(log, b"d")
    vfs.crash(0, keep=1)
    vfs.flip_bit(LOGS[0], position)
    log = open_log(vfs)
    assert payloads(log) == []
    assert log.end_offset == durable
    assert log.recovery.synced_bytes_lost == 0
    assert log.recovery.cut_bytes > 300
    _check_that_it_goes_on(vfs, log)


def test_a_sealed_segment_outside_of_the_budget_is_trusted_until_it_is_read() -> None:
    vfs, everything = build()
    vfs.flip_bit(LOGS[0], SECOND + HEADER_BYTES)
    log = open_log(vfs, verify_bytes=END)
    assert log.recovery.checked_bytes == END
    assert [bytes(each.payload) for each in log.entries(4, 10)] == [
        e.payload for e in everything[3:]
    ]
    assert bytes(log.entry(1).payload) == b"state"
    with pytest.raises(LogDamaged) as caught:
        log.entry(2)
    assert (caught.value.path, caught.value.position) == (LOGS[0], SECOND)
    log.close()
    with pytest.raises(LogDamaged):
        open_log(vfs, verify_bytes=1 << 20)


@pytest.mark.parametrize("record", [0, 2], ids=["first", "last"])
@pytest.mark.parametrize("at", [0, 4, 8, 16], ids=["position", "length", "term", "time"])
def test_an_idx_that_lies_about_an_end_of_its_segment_is_not_trusted(record: int, at: int) -> None:
    vfs, everything = build()
    before = files(vfs, ".idx")
    vfs.flip_bit(IDXES[0], IDX_HEADER_BYTES + 24 * record + at)
    assert content(open_log(vfs, verify_bytes=0)) == everything
    assert files(vfs, ".idx") == before


@pytest.mark.parametrize("path", [*LOGS, *IDXES])
def test_a_read_error_stops_recovery_and_nothing_is_cut(path: str) -> None:
    vfs, everything = build()
    before = files(vfs)
    vfs.fail("pread", path)
    with pytest.raises(OSError, match=path):
        open_log(vfs)
    assert files(vfs) == before
    vfs.kill()
    assert content(open_log(vfs)) == everything


@pytest.mark.parametrize("is_synced_before_the_roll", [False, True])
def test_sealed_segments_are_not_read_again_at_every_start(is_synced_before_the_roll: bool) -> None:
    vfs = disk()
    log = open_log(vfs)
    for _ in range(3):
        log.roll(checkpoint())
        append(log, *PAYLOADS[0])
        if is_synced_before_the_roll:
            log.sync()
    log.sync()
    vfs.crash(0, keep=0)
    log = open_log(vfs, verify_bytes=0)
    assert log.recovery.checked_bytes == END
    assert log.last_index == 9


def test_a_segment_left_unsealed_by_a_crash_is_sealed_at_start() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, *PAYLOADS[0])
    log.sync()
    log.roll(checkpoint())
    vfs.crash(0, keep=1)
    assert open_log(vfs, verify_bytes=0).recovery.checked_bytes == END + CHECKPOINT_BYTES
    vfs.crash(0, keep=0)
    assert open_log(vfs, verify_bytes=0).recovery.checked_bytes == CHECKPOINT_BYTES


def test_a_start_changes_nothing_when_there_is_nothing_to_mend() -> None:
    vfs, everything = build()
    open_log(vfs).close()
    before, writes = files(vfs), vfs.write_count
    log = open_log(vfs)
    assert content(log) == everything
    assert files(vfs) == before
    assert vfs.write_count == writes


def test_any_single_flipped_bit_is_refused_or_cut_but_never_served() -> None:
    rng = random.Random(1)
    for _ in range(300):
        vfs, everything = build()
        path = rng.choice(LOGS)
        position, bit = rng.randrange(END), rng.randrange(8)
        vfs.flip_bit(path, position, bit)
        is_last_entry = path == LOGS[2] and position >= THIRD
        try:
            log = open_log(vfs)
        except LogDamaged:
            assert not is_last_entry
        else:
            assert is_last_entry
            assert content(log) == everything[:8]


def test_entries_of_a_killed_process_survive_a_power_loss_after_the_next_start() -> None:
    vfs = disk()
    log = new_log(vfs)
    append(log, b"one", b"two")
    vfs.kill()
    expected = content(open_log(vfs))
    assert len(expected) == 3
    vfs.crash(random.Random(1), keep=0)
    assert content(open_log(vfs)) == expected


@pytest.mark.parametrize(
    ("damage", "position", "reason"),
    [
        (without(IDXES[0]), IDX_HEADER_BYTES, "the file is missing"),
        (flip(IDXES[0], 9), 0, "its header is damaged"),
        (flip(IDXES[0], IDX_HEADER_BYTES), IDX_HEADER_BYTES, "a record does not fit the log"),
        (cut(IDXES[0], IDX_HEADER_BYTES), IDX_HEADER_BYTES, "it ends too early"),
    ],
)
def test_an_idx_that_is_written_again_is_named_in_the_log_once(
    damage: Callable[[FaultyVfs], None],
    position: int,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vfs, everything = build()
    before = files(vfs, ".idx")
    damage(vfs)
    open_log(vfs).close()
    (line,) = warnings(caplog)
    assert ".idx written again" in str(line["event"])
    assert (line["file"], line["position"], line["reason"]) == (IDXES[0], position, reason)
    assert files(vfs, ".idx") == before
    assert content(open_log(vfs)) == everything
    assert len(warnings(caplog)) == 1
