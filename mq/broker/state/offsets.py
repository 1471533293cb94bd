"""Positions of groups, locks of the queues of ordered groups, and settings of groups:
part of the replicated state, changed only by applying commands.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType

from mq.broker.queue import Queue
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.state_pb2 import GroupPositions, GroupState, PutGroup, QueueLock

_NOTHING: Mapping[Queue, int] = MappingProxyType({})
_NOBODY: Mapping[Queue, str] = MappingProxyType({})


class Offsets:
    def __init__(self) -> None:
        self._positions: dict[str, dict[Queue, int]] = {}
        self._locks: dict[str, dict[Queue, str]] = {}
        self._settings: dict[str, PutGroup] = {}

    def groups(self) -> list[str]:
        return sorted(self._positions.keys() | self._locks.keys() | self._settings.keys())

    def __contains__(self, group: str) -> bool:
        return group in self._positions or group in self._locks or group in self._settings

    def positions(self, group: str) -> Mapping[Queue, int]:
        return self._positions.get(group, _NOTHING)

    def locks(self, group: str) -> Mapping[Queue, str]:
        return self._locks.get(group, _NOBODY)

    def is_ordered(self, group: str) -> bool | None:
        """None: the type of the topic says it."""
        settings = self._settings.get(group)
        return settings.is_ordered if settings and settings.HasField("is_ordered") else None

    def retries_max(self, group: str) -> int | None:
        """As it is set for the group; None: it is not."""
        settings = self._settings.get(group)
        return settings.retries_max if settings and settings.HasField("retries_max") else None

    def owner(self, group: str) -> str:
        """The user that began the group; empty: none that is known."""
        settings = self._settings.get(group)
        return settings.owner if settings else ""

    # -- applying ---------------------------------------------------------------------------------

    def commit(self, groups: Iterable[GroupPositions], topics: Container[str]) -> None:
        """As far as the topics exist."""
        for each in groups:
            positions = self._positions.setdefault(each.group, {})
            for one in each.positions:
                if one.topic in topics:
                    positions[Queue(one.topic, one.queue_id)] = one.queue_offset

    def lock(self, group: str, locks: Iterable[QueueLock]) -> None:
        held = self._locks.setdefault(group, {})
        for one in locks:
            queue = Queue(one.topic, one.queue_id)
            if one.member_id:
                held[queue] = one.member_id
            else:
                held.pop(queue, None)
        if held:
            # A group stays, also when its last lock is gone: what a checkpoint restores does.
            self._positions.setdefault(group, {})
        else:
            del self._locks[group]

    def put(self, settings: PutGroup) -> None:
        """Settings that are left out stay as they are."""
        known = self._settings.get(settings.group)
        if known is not None:
            merged = PutGroup()
            merged.CopyFrom(known)
            merged.MergeFrom(settings)
            settings = merged
        self._settings[settings.group] = settings

    def advance(self, group: str, queue: Queue, queue_offset: int) -> None:
        self._positions.setdefault(group, {})[queue] = queue_offset

    def drop_group(self, group: str) -> None:
        self._locks.pop(group, None)
        self._settings.pop(group, None)
        self._positions.pop(group, None)

    def drop_topic(self, topic: str) -> None:
        """A group stays, even without an offset."""
        for group, positions in self._positions.items():
            self._positions[group] = {q: at for q, at in positions.items() if q.topic != topic}
        for group, held in list(self._locks.items()):
            self._locks[group] = {q: member for q, member in held.items() if q.topic != topic}
            if not self._locks[group]:
                del self._locks[group]

    def encode(self) -> Iterator[GroupState]:
        for group in self.groups():
            yield GroupState(
                group=group,
                positions=[
                    QueuePosition(topic=queue.topic, queue_id=queue.queue_id, queue_offset=at)
                    for queue, at in sorted(self.positions(group).items())
                ],
                locks=[
                    QueueLock(topic=queue.topic, queue_id=queue.queue_id, member_id=member_id)
                    for queue, member_id in sorted(self.locks(group).items())
                ],
                settings=self._settings.get(group),
            )

    def restore(self, states: Iterable[GroupState]) -> None:
        self._positions.clear()
        self._locks.clear()
        self._settings.clear()
        for state in states:
            self._positions[state.group] = {
                Queue(one.topic, one.queue_id): one.queue_offset for one in state.positions
            }
            if state.HasField("settings"):
                self._settings[state.group] = state.settings
            if state.locks:
                self.lock(state.group, state.locks)
