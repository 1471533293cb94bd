"""The constructor arguments of consumers, checked before any broker is asked, and as they go over
the wire.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

from mq.client.cluster.connection import ConnectionOptions
from mq.client.messages import FilterLike, wire_filter
from mq.errors import IllegalConfig
from mq.names import check_group, check_topic
from mq.wire.v1 import consumer_pb2 as wire

Mode = Literal["clustering", "ordered", "broadcast"]
Start = Literal["latest", "earliest"] | int
Subscriptions = str | Sequence[str] | Mapping[str, FilterLike]

CACHE_MESSAGES = 1_000
CACHE_BYTES = 100 << 20

_MODES: dict[str, wire.ConsumeMode] = {
    "clustering": wire.MODE_CLUSTERING,
    "ordered": wire.MODE_ORDERED,
    "broadcast": wire.MODE_BROADCAST,
}


@dataclass(frozen=True)
class GroupOptions(ConnectionOptions):
    """The constructor arguments of all members of groups. Raises IllegalConfig, IllegalGroup,
    IllegalTopic or IllegalFilter for illegal options, as its subclasses do.
    """

    group: str
    subscriptions: Subscriptions
    _: KW_ONLY
    start: Start = "latest"
    filters: dict[str, FilterLike] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_group(self.group)
        object.__setattr__(self, "filters", _filters(self.subscriptions))
        wanted_tags(self.filters)
        start_position(self.start)

    @property
    def topics(self) -> list[str]:
        return list(self.filters)

    @property
    def is_clustering(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(GroupOptions):
    """The constructor arguments of consumers that are assigned queues."""

    mode: Mode = "clustering"
    cache_messages: int = CACHE_MESSAGES
    cache_bytes: int = CACHE_BYTES
    member_id: str | None = None
    offsets_file: str | Path | None = None
    # The member id as brokers see it.
    member: str = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in _MODES:
            raise IllegalConfig(f"mode {self.mode!r}: use one of {', '.join(_MODES)}")
        if self.cache_messages < 1 or self.cache_bytes < 1:
            raise IllegalConfig("cache_messages and cache_bytes: at least 1")
        if self.offsets_file is not None and not self.is_broadcast:
            raise IllegalConfig(
                f"offsets_file is for mode='broadcast'; in mode {self.mode!r} the broker has them"
            )
        object.__setattr__(self, "member", self.member_id or new_member_id())

    @property
    def is_broadcast(self) -> bool:
        return self.mode == "broadcast"

    @property
    def is_clustering(self) -> bool:
        return self.mode == "clustering"

    @property
    def is_ordered(self) -> bool:
        return self.mode == "ordered"

    def wire_start(self, start: Start | None = None) -> wire.SubscribeStart:
        """The first request of a stream, without positions. `start` replaces that of the options
        in this set.
        """
        position, start_at_ms = start_position(self.start if start is None else start)
        return wire.SubscribeStart(
            group=self.group,
            member_id=self.member,
            zone=self.zone,
            mode=_MODES[self.mode],
            subscriptions=[
                wire.Subscription(topic=topic, filter=wire_filter(chosen))
                for topic, chosen in self.filters.items()
            ],
            start_position=position,
            start_at_ms=start_at_ms,
            cache_messages=self.cache_messages,
            cache_bytes=self.cache_bytes,
            takes_redirects=True,
        )


def new_member_id() -> str:
    """Unique; names the host and process for operators."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def wanted_tags(filters: Mapping[str, FilterLike]) -> dict[str, frozenset[str]]:
    """The tags of each topic that is filtered by tags."""
    wire = {topic: wire_filter(chosen) for topic, chosen in filters.items()}
    return {
        topic: split_tags(one.tags)
        for topic, one in wire.items()
        if one is not None and one.WhichOneof("kind") == "tags"
    }


def split_tags(expression: str) -> frozenset[str]:
    return frozenset(tag.strip() for tag in expression.split("||"))


def _filters(subscriptions: Subscriptions) -> dict[str, FilterLike]:
    if isinstance(subscriptions, str):
        subscriptions = [subscriptions]
    if isinstance(subscriptions, Mapping):
        filters = dict(subscriptions)
    else:
        filters = dict.fromkeys(subscriptions)
    if not filters:
        raise IllegalConfig("subscriptions: give at least one topic")
    for topic in filters:
        check_topic(topic)
    return filters


def start_position(start: Start) -> tuple[wire.StartPosition, int]:
    match start:
        case "latest":
            return wire.START_LATEST, 0
        case "earliest":
            return wire.START_EARLIEST, 0
        case bool():
            pass
        case int() if start >= 0:
            return wire.START_TIMESTAMP, start
    raise IllegalConfig(f"start {start!r}: use 'latest', 'earliest' or milliseconds since 1970")
