"""The door to PySyncObj."""

from __future__ import annotations

import random
import re
from pathlib import Path
from zlib import crc32

import pytest
from pysyncobj import syncobj

from mq.raft import engine
from mq.raft.engine import Engine, Peer, _HeardTable, _private_names, check_pysyncobj, enter


def test_a_peer_is_its_id_and_hashes_the_same_in_every_process() -> None:
    assert Peer("n1") == Peer("n1")
    assert Peer("n1") != Peer("n2")
    assert Peer("n1") != "n1"
    assert hash(Peer("n1")) == crc32(b"n1")


def test_the_names_that_are_checked_are_those_that_are_used() -> None:
    source = Path(engine.__file__).read_text()
    used = re.findall(r"_SyncObj__\w+", source)
    used += [f"_SyncObj__{name}" for name in re.findall(r'_private\("(\w+)"\)', source)]
    assert _private_names(Engine) == set(used) - {"_SyncObj__"}


@pytest.mark.parametrize(
    ("version", "names", "lacking"),
    [
        ("0.3.17", ["_SyncObj__raftState", "_SyncObj__raftWay"], "_SyncObj__raftWay"),
        ("0.3.18", ["_SyncObj__raftState"], "no name"),
    ],
)
def test_another_pysyncobj_is_refused_by_its_version_and_the_names_that_it_lacks(
    version: str, names: list[str], lacking: str
) -> None:
    check_pysyncobj("0.3.17", _private_names(Engine))
    with pytest.raises(RuntimeError, match=rf"this is {version}; it lacks: {lacking}"):
        check_pysyncobj(version, names)


def test_time_and_randomness_are_those_of_the_engine_that_runs() -> None:
    for seed, now_s in ((1, 42.0), (2, 7.5)):
        enter(now_s, random.Random(seed))
        assert syncobj.monotonicTime() == now_s
        assert syncobj.random.random() == random.Random(seed).random()


def test_the_table_of_pysyncobj_is_a_field_of_all_progress_records() -> None:
    one, other = peers = [Peer("n1"), Peer("n2")]
    table = _HeardTable(peers)
    table[one] = 5.0
    other.progress.heard_s = 6.0
    assert [table[peer] for peer in peers] == [5.0, 6.0]
    table.clear()
    assert [peer.progress.heard_s for peer in peers] == [0.0, 0.0]
