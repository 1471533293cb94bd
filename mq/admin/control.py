"""The status of a node for operators, and the settings that they may change while it runs."""

from __future__ import annotations

import importlib.metadata
import resource
from pathlib import Path

import msgspec

from mq import config as configuration
from mq import logging
from mq.broker.broker import Broker
from mq.config import Config
from mq.errors import IllegalConfig
from mq.raft.contracts import Follower, Status
from mq.raft.node import Node as RaftNode
from mq.store.damage import Damage, DamageKind
from mq.store.vfs import Vfs
from mq.wire.v1 import admin_pb2 as pb

# Everything else is read once, at the start.
DYNAMIC = frozenset(
    {
        "broker.auto_create_topics",
        "broker.auto_create_by_consumers",
        "log.level",
        "retention.hours",
        "retention.bytes",
        "retention.clean_expired_ratio",
        "retention.clean_oldest_ratio",
        "retention.refuse_writes_ratio",
        "retention.check_ms",
        "store.scrub_bytes_per_s",
    }
)


class Control:
    def __init__(self, broker: Broker, raft: RaftNode, vfs: Vfs) -> None:
        self._broker = broker
        self.raft = raft
        self._vfs = vfs
        self._started_at_ms = broker.now_ms()

    def status(self) -> pb.BrokerStatusResponse:
        broker, raft = self._broker, self.raft.status()
        node = broker.settings.config.node
        disk = self._vfs.disk_usage(node.data)
        used = resource.getrusage(resource.RUSAGE_SELF)
        return pb.BrokerStatusResponse(
            cluster=node.cluster,
            broker_set=node.broker_set,
            node_id=node.id,
            version=importlib.metadata.version("mq"),
            role=raft.leadership.role.name.lower(),
            leader_id=raft.leadership.leader_id or "",
            term=raft.leadership.term,
            commit_index=raft.commit_index,
            applied_index=raft.applied_index,
            last_index=raft.last_index,
            first_index=raft.first_index,
            log_bytes=broker.store.log.end_offset - broker.store.log.start_offset,
            disk_total_bytes=disk.total_bytes,
            disk_used_bytes=disk.total_bytes - disk.free_bytes,
            topics=len(broker.state.topics),
            internal_topics=broker.state.topics.internal_count,
            topic_queues=broker.state.topics.queue_count,
            groups=len(broker.groups.names()),
            queues=len(broker.store.queues),
            members=broker.groups.member_count,
            messages_in=broker.publisher.messages_total,
            messages_out=broker.puller.messages_total,
            half_messages=broker.state.transactions.messages,
            timing_messages=broker.state.schedule.messages,
            dead_letters=broker.dead_letters.messages,
            rss_bytes=rss_bytes(),
            started_at_ms=self._started_at_ms,
            cpu_seconds=used.ru_utime + used.ru_stime,
            followers=[_follower(raft, one) for one in raft.followers],
            is_ready=self.raft.is_ready,
            is_voter=raft.is_voter,
            joining=_follower(raft, raft.joining) if raft.joining else None,
            set_members=[
                pb.SetMember(node_id=node_id, address=address)
                for node_id, address in sorted(raft.members.items())
            ],
            damages=[_damage(one) for one in broker.store.damage.records()],
            open_damages=sum(map(broker.store.damage.open_count, DamageKind)),
        )

    def options(self) -> pb.ConfigList:
        config = self._broker.settings.config
        return pb.ConfigList(
            options=[
                pb.ConfigOption(
                    name=option.name,
                    value=option.text(option.value_in(config)),
                    default=option.text(option.default),
                    description=option.description,
                    is_dynamic=option.name in DYNAMIC,
                )
                for option in configuration.options()
            ]
        )

    def set_option(self, name: str, value: str) -> None:
        """Raises IllegalConfig; nothing changed then."""
        if name not in DYNAMIC:
            known = name in {option.name for option in configuration.options()}
            what = "cannot be changed while the node runs" if known else "is no option"
            raise IllegalConfig(f"{name[:200]} {what}; these can be: {', '.join(sorted(DYNAMIC))}")
        settings = self._broker.settings
        settings.config = _changed(settings.config, name, value)
        if name.startswith("log."):
            logging.configure(settings.config.log.level, settings.config.log.format)


def _follower(raft: Status, one: Follower) -> pb.FollowerStatus:
    return pb.FollowerStatus(
        node_id=one.node_id,
        address=one.address,
        behind=max(0, raft.last_index - one.match_index),
        is_connected=one.is_connected,
        is_voter=one.is_voter,
    )


def _damage(one: Damage) -> pb.StorageDamage:
    return pb.StorageDamage(
        kind=one.kind.value,
        file=one.path,
        position=one.position,
        reason=one.reason,
        start_log_offset=one.start,
        end_log_offset=one.end,
        affected=one.affected,
        found_at_ms=one.found_at_ms,
        mended_at_ms=one.mended_at_ms,
        is_lost=one.is_lost,
    )


def _changed(config: Config, name: str, value: str) -> Config:
    flags = {
        option.name: option.text(option.value_in(config)) for option in configuration.options()
    }
    # Checked together with all others, as at a start.
    loaded = configuration.load(None, {}, {**flags, name: value})
    section, _, key = name.partition(".")
    changed = getattr(getattr(loaded, section), key)
    return msgspec.structs.replace(
        config, **{section: msgspec.structs.replace(getattr(config, section), **{key: changed})}
    )


def rss_bytes() -> int:
    """Memory of this process that is in use now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
