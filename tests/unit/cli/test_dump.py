"""`mq dump`: what it shows of a data directory, how it ends, and that it touches nothing."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mq.cli import dump, tables
from mq.cli import main as cli
from mq.config import StoreConfig
from mq.store import checkpoint
from mq.store.batch import Batch, accept, prepare
from mq.store.consumequeue import SavedQueue
from mq.store.format import HEADER_BYTES, Kind
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from tests.support.stores import append_entry, apply_through, roll

NOW_MS = 1_783_850_000_123  # 2026-07-12 09:53:20.123 UTC
NODE = Identity("prod", "broker-a", "node-1")
CONFIG = StoreConfig(segment_bytes=64 << 10)
VIEWS = [(), ("--entries",), ("--queues",), ("--verify",), ("--json",), ("--entries", "--json")]


def run(*arguments: object, columns: int = 80) -> Result:
    group = cli._Group("mq", commands={"dump": dump.dump})
    runner = CliRunner(env={"COLUMNS": str(columns)})
    return runner.invoke(group, ["dump", *map(str, arguments)], prog_name="mq")


def run_json(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def batch(topic: str, queue_id: int, count: int, body_bytes: int = 400) -> Batch:
    messages = [Message(body=bytes(body_bytes), keys=[f"k{i}"]) for i in range(count)]
    plain = WireBatch(topic=topic, queue_id=queue_id, messages=messages)
    return accept(prepare(plain.SerializeToString()), 1 << 20)


def fill(store: Store, entries: int) -> None:
    """Each entry has i % 5 + 1 messages for a queue of orders, and one for payments."""
    if store.log.last_index == 0:
        roll(store, NOW_MS, 1)
    for i in range(entries):
        batches = [batch("orders", i % 3, i % 5 + 1), batch("payments", 0, 1)]
        ref = append_entry(store, batches, NOW_MS + 1000 * i, 1 + i // 60)
        store.log.sync()
        apply_through(store, ref.raft_index)


def open_store(directory: Path) -> Store:
    return Store(RealVfs(), str(directory), CONFIG, NODE, background=False)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "data"
    store = open_store(directory)
    fill(store, 120)
    store.close()
    return directory


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """The directory of a store that was closed: some segments, the last one with room."""
    return Path(shutil.copytree(filled, tmp_path / "data"))


def segment_files(data: Path) -> list[Path]:
    return sorted((data / "commitlog").glob("*.log"))


def change(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


# The overview.


def test_the_overview_shows_identity_checkpoint_and_segments(data: Path) -> None:
    found = run_json(data)
    assert found["identity"] == NODE._asdict()
    segments = found["segments"]
    assert [segment["path"] for segment in segments] == list(map(str, segment_files(data)))
    assert [segment["state"] for segment in segments] == [
        *["sealed"] * (len(segments) - 1),
        "active",
    ]
    assert len(segments) > 2
    assert segments[0]["first_index"] == 1
    assert segments[0]["first_stored_at_ms"] == NOW_MS
    for before, after in itertools.pairwise(segments):
        assert after["first_index"] == before["last_index"] + 1
        assert after["base_log_offset"] == before["base_log_offset"] + before["used_bytes"]
        assert before["used_bytes"] == before["file_bytes"]
        assert before["entries"] == before["last_index"] - before["first_index"] + 1
    last = segments[-1]
    assert (last["last_term"], last["last_stored_at_ms"]) == (2, NOW_MS + 119_000)
    # Sealed ones are believed, the active one is read.
    assert [segment["is_checked"] for segment in segments] == [
        *[False] * (len(segments) - 1),
        True,
    ]
    assert found["checkpoint"] == {
        "fit": "fits",
        "raft_index": last["last_index"],
        "term": 2,
        "queues": 4,
        "index_full_files": 0,
        "index_newest_items": 120 * 4,
    }
    assert (found["ending"], found["problems"], found["removed"]) == ("clean", [], [])


def test_the_overview_as_tables(data: Path) -> None:
    text = run(data).stdout
    assert "identity    cluster prod, broker set broker-a, node node-1" in text
    assert ", 4 queues, 480 index items" in text
    assert "after the last entry: clean\n" in text
    assert "2026-07-12 09:53:20.123" in text
    assert "sealed" in text
    wide = run(data, columns=200).stdout
    assert "00000000000000000000.log" in wide
    assert "2026-07-12 09:53:20.123 to 2026-07-12" in wide


@pytest.mark.parametrize("options", [(), ("--entries",), ("--queues",), ("--verify",)])
@pytest.mark.parametrize("columns", [80, 100, 130, 200])
def test_tables_fit_the_terminal_and_cut_nothing(
    data: Path, options: tuple[str, ...], columns: int
) -> None:
    text = run(data, *options, columns=columns).stdout
    lines = [line.rstrip() for line in text.splitlines() if str(data) not in line]
    assert max(map(len, lines)) <= columns
    assert "…" not in text


def test_a_table_with_the_largest_numbers_keeps_them_whole(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "big"
    (path / "commitlog").mkdir(parents=True)
    base = 987_654_321_012
    (path / "commitlog" / f"{base:020d}.log").write_bytes(segment_files(data)[0].read_bytes())
    text = run(path).stdout
    assert str(base) in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_checkpoint_that_does_not_fit_is_called_so(data: Path) -> None:
    vfs, path = RealVfs(), str(data / "checkpoint")
    state = checkpoint.load(vfs, path)
    assert state is not None
    checkpoint.save(vfs, path, state._replace(term=9))
    assert run_json(data)["checkpoint"]["fit"] == "misfit"
    assert "the log has no such entry" in " ".join(run(data).stdout.split())
    (data / "checkpoint").write_bytes(b"MQC")
    assert run_json(data)["checkpoint"]["fit"] == "invalid"
    assert "not valid" in run(data).stdout
    (data / "checkpoint").unlink()
    assert run_json(data)["checkpoint"] is None
    assert "none yet" in run(data).stdout


# Entries.


def test_entries_are_listed_up_to_the_limit(data: Path) -> None:
    entries = run_json(data, "--entries")["entries"]
    assert [entry["raft_index"] for entry in entries] == list(range(1, 51))
    assert entries[0]["kind"] == "checkpoint"
    assert entries[1] == {
        "raft_index": 2,
        "term": 1,
        "kind": "messages",
        "stored_at_ms": NOW_MS,
        "log_offset": HEADER_BYTES,
        "size_bytes": entries[2]["log_offset"] - HEADER_BYTES,
        "batches": 2,
        "messages": 2,
        "topics": ["orders", "payments"],
        "problem": "",
    }
    everything_listed = run_json(data, "--entries", "--limit", 0)["entries"]
    assert sum(entry["messages"] for entry in everything_listed) == 120 * 4
    assert everything_listed[:50] == entries


def test_entries_from_an_index_on_and_of_a_kind(data: Path) -> None:
    some = run_json(data, "--entries", "--from-index", 100, "--limit", 3)["entries"]
    assert [entry["raft_index"] for entry in some] == [100, 101, 102]
    opening = run_json(data, "--entries", "--kind", "checkpoint")["entries"]
    assert [entry["log_offset"] for entry in opening] == [
        int(path.stem) for path in segment_files(data)
    ]
    assert run_json(data, "--entries", "--kind", "noop")["entries"] == []
    assert run(data, "--entries", "--kind", "noop").stdout == "No entries.\n"


def test_entries_as_a_table(data: Path) -> None:
    text = run(data, "--entries", "--limit", 3).stdout
    assert "checkpoint" in text
    assert "09:53:20.123" in text
    assert "orders +1" in text
    assert "Left out here: batches." in text
    assert "The first 3;" in text
    wide = run(data, "--entries", "--limit", 3, columns=160).stdout
    assert "orders, payments" in wide
    assert "Left out" not in wide


def test_long_tables_are_printed_in_pages(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PAGE_ROWS", 50)
    text = run(data, "--entries", "--limit", 0).stdout
    assert text.count("messages  topics") == 3


def test_kinds_are_those_of_the_format() -> None:
    assert list(dump.KINDS) == [kind.name.lower() for kind in Kind]


# Queues.


def expected_queues(entries: int) -> list[dict[str, object]]:
    ends = {("orders", q): sum(i % 5 + 1 for i in range(entries) if i % 3 == q) for q in range(3)}
    ends["payments", 0] = entries
    return [
        {"topic": topic, "queue_id": q, "first_offset": 0, "end_offset": end, "messages": end}
        for (topic, q), end in sorted(ends.items())
    ]


def test_queues_are_counted_from_the_log(data: Path) -> None:
    assert run_json(data, "--queues")["queues"] == expected_queues(120)
    (data / "checkpoint").unlink()
    assert run_json(data, "--queues")["queues"] == expected_queues(120)


def test_queues_do_not_believe_a_checkpoint_that_does_not_fit(data: Path) -> None:
    vfs, path = RealVfs(), str(data / "checkpoint")
    state = checkpoint.load(vfs, path)
    assert state is not None
    wrong = state._replace(queues=[SavedQueue("orders", 0, 0, 99_999)])
    checkpoint.save(vfs, path, wrong._replace(term=9))
    assert run_json(data, "--queues")["queues"] == expected_queues(120)
    checkpoint.save(vfs, path, wrong)
    assert run_json(data, "--queues")["queues"][0]["end_offset"] == 99_999


def test_queues_start_where_the_log_starts(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    fill(store, 120)
    store.drop_front(1)
    starts = {(each.topic, each.queue_id): each.start for each in store.queues.extents()}
    queues = run_json(tmp_path / "data", "--queues")["queues"]
    store.close()
    assert {(each["topic"], each["queue_id"]): each["first_offset"] for each in queues} == starts
    assert any(starts.values())
    assert all(each["messages"] == each["end_offset"] - each["first_offset"] for each in queues)


def test_queues_of_a_topic(data: Path) -> None:
    queues = run_json(data, "--queues", "--topic", "payments")["queues"]
    assert [queue["topic"] for queue in queues] == ["payments"]
    text = run(data, "--queues", "--topic", "orders").stdout
    assert "3 queues, 360 messages\n" in text
    assert run(data, "--queues", "--topic", "nothing").stdout == "No queues.\n"


# Torn and damaged logs.


def test_a_torn_tail_is_no_error(data: Path) -> None:
    last = run_json(data)["segments"][-1]
    whole = segment_files(data)[-1].read_bytes()
    # As after a crash in the middle of a write: of the entry, which no mark speaks of, the start.
    change(segment_files(data)[-1], last["used_bytes"], whole[:HEADER_BYTES] + bytes(59) + b"x")
    found = run_json(data)
    assert found["ending"] == "torn"
    (problem,) = found["problems"]
    assert (problem["position"], problem["torn_bytes"]) == (last["used_bytes"], 100)
    assert not problem["is_damage"]
    for options in VIEWS:
        result = run(data, *options)
        assert result.exit_code == 0, result.output
    assert "after the last entry: 100 bytes torn" in run(data).stdout
    assert run_json(data, "--queues")["queues"] == expected_queues(120)


def test_synced_bytes_that_are_gone_fail_a_verification(data: Path) -> None:
    last = run_json(data)["segments"][-1]
    os.truncate(last["path"], last["used_bytes"] - 10)
    assert "bytes lost that had been synced" in " ".join(run(data).stdout.split())
    result = run(data, "--verify")
    assert result.exit_code == 1
    assert "bytes that had been synced are gone" in result.stderr


def test_verify_names_file_byte_and_reason_of_damage(data: Path) -> None:
    second = segment_files(data)[1]
    change(second, 5000, b"damaged")
    assert run(data).exit_code == 0
    result = run(data, "--verify")
    assert result.exit_code == 1
    entries = run(data, "--entries", "--limit", 0, "--json")
    document = json.loads(entries.stdout)
    (problem,) = document["problems"]
    assert entries.exit_code == 1
    assert problem["path"] == str(second)
    assert problem["position"] <= 5000 < problem["resumes_at"]
    assert result.stderr.startswith(
        f"error: LOG_DAMAGED: {second} is damaged at byte {problem['position']}: "
        "the checksum does not match. The node does not start on it."
    )
    assert "damaged" in result.stdout
    # What stands behind the damage is still listed.
    indexes = [entry["raft_index"] for entry in document["entries"]]
    assert indexes[-1] == run_json(data)["segments"][-1]["last_index"]
    assert len(indexes) == indexes[-1] - 1


def test_verify_of_a_sound_log_says_that_all_was_read(data: Path) -> None:
    result = run(data, "--verify")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "entries, every byte checked\n" in result.stdout
    assert all(segment["is_checked"] for segment in run_json(data, "--verify")["segments"])


def test_a_wrong_idx_is_named_with_what_to_do(data: Path) -> None:
    idx = segment_files(data)[0].with_suffix(".idx")
    change(idx, 40 + 24 * 3, b"\xff")
    result = run(data, "--verify")
    assert result.exit_code == 1
    assert f"{idx} is damaged at byte 112" in result.stderr
    assert "remove this file" in result.stderr
    idx.unlink()
    assert run(data, "--verify").exit_code == 0


# What is no data directory, and usage.


def test_an_empty_directory_gets_a_friendly_line(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "is empty: no node has used it yet." in " ".join(result.stdout.split())
    assert list(tmp_path.iterdir()) == []
    assert run_json(tmp_path)["segments"] == []
    assert run(tmp_path, "--entries").stdout == "No entries.\n"
    assert run(tmp_path, "--queues").stdout == "No queues.\n"


def test_an_empty_log_gets_a_friendly_line(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.endswith("The log is empty.\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing", "does not exist"),
        ("other", "is not a data directory"),
        ("other/file", "cannot be read: Not a directory"),
        ("data/commitlog", "name the data directory"),
    ],
)
def test_a_path_that_is_no_data_directory_is_refused(data: Path, name: str, text: str) -> None:
    other = data.parent / "other"
    other.mkdir()
    (other / "file").touch()
    for options in VIEWS:
        result = run(data.parent / name, *options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: WRONG_DATA_DIRECTORY: ")
        assert text in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--entries", "--queues"),
        ("--limit", "3"),
        ("--topic", "a", "--entries"),
        ("--entries", "--from-index", "-1"),
        ("--entries", "--kind", "other"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(
    data: Path, options: tuple[str, ...]
) -> None:
    result = run(data, *options)
    assert (result.exit_code, result.stdout) == (2, "")


def test_help_fits_80_columns_of_ascii() -> None:
    text = run("--help").stdout
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80


# Read-only.


def test_a_directory_that_may_only_be_read_is_shown(data: Path) -> None:
    paths = [data, *data.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    try:
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        for options in VIEWS:
            assert run(data, *options).exit_code == 0
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.parametrize(
    ("folder", "position"), [("consumequeue", 25), ("index", 7), ("index", 50), ("index", -1)]
)
def test_verify_finds_damage_in_queues_and_index(
    tmp_path: Path, folder: str, position: int
) -> None:
    data = tmp_path / "data"
    config = StoreConfig(queue_file_units=30, index_slots=8, index_items=32)
    store = Store(RealVfs(), str(data), config, NODE, background=False)
    fill(store, 30)
    store.close()
    assert run(data, "--verify").exit_code == 0
    path = min(path for path in (data / folder).rglob("0*") if path.is_file())
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)
    result = run(data, "--verify")
    assert result.exit_code == 1
    assert str(path) in result.output.replace("\n", "")
    assert "QUEUE_DAMAGED" in result.output
    assert run(data).exit_code == 0
