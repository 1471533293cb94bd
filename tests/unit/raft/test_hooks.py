"""The door to PySyncObj."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from mq.raft.hooks import Peer, SyncObj, now_s, peer_of, random_share, require, virtual_time


def test_a_peer_is_its_id_and_hashes_the_same_in_every_process() -> None:
    assert Peer("n1") == Peer("n1") == peer_of("n1")
    assert Peer("n1") != Peer("n2")
    assert Peer("n1") != "n1"
    assert hash(Peer("n1")) == crc32(b"n1")
    assert peer_of("n1") is peer_of("n1")


def test_another_pysyncobj_is_refused_by_the_names_that_it_lacks() -> None:
    require(SyncObj, ["doTick", "_SyncObj__sendAppendEntries"])
    with pytest.raises(RuntimeError, match=r"has no _SyncObj__no, _SyncObj__way: mq.raft needs"):
        require(SyncObj, ["_SyncObj__way", "doTick", "_SyncObj__no"])


def test_time_and_randomness_are_virtual_only_inside() -> None:
    before = now_s()
    with virtual_time(lambda: 42.0, random.Random(1)):
        assert now_s() == 42.0
        assert random_share() == random.Random(1).random()
    assert now_s() >= before
    assert now_s() != 42.0
