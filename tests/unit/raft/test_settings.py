"""From the configuration to what a node needs to replicate."""

from __future__ import annotations

import pytest

from mq.config import load
from mq.errors import IllegalConfig
from mq.raft.settings import RaftSettings, from_config

THREE = "n0=a:1,n1=b:2,n2=c:3"


def settings(**flags: str) -> RaftSettings:
    return from_config(load(None, {}, {key.replace("__", "."): v for key, v in flags.items()}))


def test_a_node_without_members_is_alone_and_does_not_listen() -> None:
    found = settings()
    assert list(found.settings.members) == [found.settings.node_id] == ["node-0"]
    assert found.listen is None
    assert found.tls is None


def test_a_member_listens_where_the_others_look_for_it() -> None:
    found = settings(raft__members=THREE, node__id="n1")
    assert found.settings.members == {"n0": "a:1", "n1": "b:2", "n2": "c:3"}
    assert found.listen == "b:2"
    assert settings(raft__members=THREE, node__id="n1", raft__listen="0.0.0.0:9").listen == (
        "0.0.0.0:9"
    )


def test_a_node_alone_listens_when_others_are_to_join_it() -> None:
    found = settings(raft__listen="host:9")
    assert found.listen == "host:9"
    assert found.settings.members == {"node-0": "host:9"}


def test_times_follow_from_two_options_and_a_leader_without_majority_steps_down_in_time() -> None:
    timing = settings().settings.timing
    assert (timing.heartbeat_s, timing.election_min_s, timing.election_max_s) == (0.1, 0.5, 1.0)
    assert timing.fallback_s == pytest.approx(1.5)
    slow = settings(raft__election_timeout_ms="4s").settings.timing
    assert slow.fallback_s == 8.0


def test_async_flush_counts_what_is_not_synced() -> None:
    assert not settings().settings.counts_unsynced
    assert settings(store__flush="async").settings.counts_unsynced


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"raft__members": THREE}, ["n0, n1, n2", "node-0", "node.id"]),
        ({"raft__members": "n0=a:1,n0=b:2", "node__id": "n0"}, ["n0 twice"]),
        ({"raft__join": "yes"}, ["raft.join", "raft.members"]),
        ({"raft__heartbeat_ms": "200"}, ["raft.election_timeout_ms", "raft.heartbeat_ms", "200"]),
        ({"raft__tls_cert": "c.pem"}, ["tls_cert", "tls_key", "tls_ca", "all three"]),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    flags: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(IllegalConfig) as caught:
        settings(**flags)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("members", ["n0", "n0=a", "n0=a:1,", "n 0=a:1", "n0=a:1;n1=b:2", "=a:1"])
def test_illegal_members_are_refused(members: str) -> None:
    with pytest.raises(IllegalConfig, match=r"raft-members.*node=host:port"):
        settings(raft__members=members)
