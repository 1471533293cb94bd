"""The settings of replication, from the configuration."""

from __future__ import annotations

from typing import NamedTuple

from mq.config import Config
from mq.errors import IllegalConfig
from mq.raft import tls
from mq.raft.contracts import Limits, Settings, Timing
from mq.raft.tls import TlsContexts
from mq.tls import Certificates, Files

# A leader without a majority steps down before another one could be elected and serve for long.
_FALLBACK_HEARTBEATS = 15
# A node alone needs an address only in case that others join it.
_ALONE = "127.0.0.1:8082"


class RaftSettings(NamedTuple):
    settings: Settings
    listen: str | None
    tls: Certificates[TlsContexts] | None


def from_config(config: Config) -> RaftSettings:
    """IllegalConfig names the options that do not fit each other."""
    raft, node_id = config.raft, config.node.id
    members = _members(raft.members)
    if members and node_id not in members:
        raise IllegalConfig(
            f"raft.members has {', '.join(members)}, but this node is {node_id} (node.id)"
        )
    if raft.join == "yes" and len(members) < 2:
        raise IllegalConfig(
            "raft.join is yes, but raft.members does not have the nodes that are to be joined"
        )
    if raft.heartbeat_ms * 4 > raft.election_timeout_ms:
        raise IllegalConfig(
            f"raft.election_timeout_ms = {raft.election_timeout_ms} must be at least four times "
            f"raft.heartbeat_ms = {raft.heartbeat_ms}"
        )
    heartbeat_s, election_s = raft.heartbeat_ms / 1000, raft.election_timeout_ms / 1000
    timing = Timing(
        heartbeat_s=heartbeat_s,
        election_min_s=election_s,
        election_max_s=2 * election_s,
        fallback_s=max(heartbeat_s * _FALLBACK_HEARTBEATS, 2 * election_s),
    )
    settings = Settings(
        node_id,
        members or {node_id: raft.listen or _ALONE},
        is_joining=raft.join == "yes",
        counts_unsynced=config.store.flush == "async",
        timing=timing,
        limits=Limits(entry_bytes_max=config.store.entry_bytes_max),
    )
    own_address = members[node_id] if len(members) > 1 else None
    return RaftSettings(settings, raft.listen or own_address, _tls(config))


def _members(text: str) -> dict[str, str]:
    members: dict[str, str] = {}
    for part in text.split(",") if text else ():
        node_id, _, address = part.partition("=")
        if node_id in members:
            raise IllegalConfig(f"raft.members has {node_id} twice")
        members[node_id] = address
    return members


def _tls(config: Config) -> Certificates[TlsContexts] | None:
    files = config.raft.tls_cert, config.raft.tls_key, config.raft.tls_ca
    if not any(files):
        return None
    if not all(files):
        raise IllegalConfig(
            "raft.tls_cert, raft.tls_key and raft.tls_ca go together: give all three"
        )
    return Certificates("raft", Files(*files), lambda paths, *_: tls.load(*paths))
