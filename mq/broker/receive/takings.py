"""All groups that receive, as the leader remembers them: found by group and topic, told of
arrivals, of applied commands and of time, and forgotten when nobody has received for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.queue import Queue
from mq.broker.receive.taking import Taking
from mq.broker.state.leases import Range
from mq.broker.state.state import State
from mq.errors import MqError
from mq.wire.v1 import state_pb2

# A group that nobody receives for is forgotten here, not by the state.
_FORGET_MS = 600_000


class Takings:
    def __init__(
        self, state: State, arrivals: Arrivals, end: Callable[[Queue], int], expires_ms: int
    ) -> None:
        """`end` says where a queue ends now."""
        self._state = state
        self._arrivals = arrivals
        self._end = end
        self._expires_ms = expires_ms
        self._takings: dict[str, dict[str, Taking]] = {}  # by group and topic
        self._watched: dict[Taking, list[Queue]] = {}
        self._empty_since_ms: dict[Taking, int] = {}

    def __iter__(self) -> Iterator[Taking]:
        for by_topic in list(self._takings.values()):
            yield from list(by_topic.values())

    def of(self, group: str, topic: str) -> Taking:
        """TopicNotFound, PermissionDenied."""
        taking = self._takings.get(group, {}).get(topic)
        if taking is None:
            taking = Taking(group, self._state.topics.readable(topic), self._end)
            self._takings.setdefault(group, {})[topic] = taking
            self._watch(taking)
        self._empty_since_ms.pop(taking, None)
        return taking

    def active_members(self, group: str, steady_ms: int) -> dict[str, int]:
        """Who receives, or did a moment ago, and for how long each was silent."""
        found: dict[str, int] = {}
        for taking in self._takings.get(group, {}).values():
            for member_id, silent_ms in taking.active_members(steady_ms, self._expires_ms).items():
                found[member_id] = min(silent_ms, found.get(member_id, silent_ms))
        return found

    def leave(self, group: str, member_id: str) -> None:
        for taking in self._takings.get(group, {}).values():
            taking.leave(member_id)

    def dismiss(self, error: MqError) -> None:
        """Everything is forgotten; those who wait hear why."""
        for taking in self:
            self._drop(taking)
            taking.dismiss(error)

    def pass_time(self, now_ms: int, steady_ms: int) -> None:
        for taking in self:
            taking.pass_time(now_ms, self._state.leases)
            taking.wake()
            if taking.expire(steady_ms, self._expires_ms):
                since_ms = self._empty_since_ms.setdefault(taking, steady_ms)
                if steady_ms - since_ms >= _FORGET_MS:
                    self._drop(taking)

    # -- applied commands -------------------------------------------------------------------------

    def on_command(self, command: state_pb2.Command, now_ms: int) -> None:
        if not self._takings:
            return
        match command.WhichOneof("kind"):
            case "change_leases":
                for one in command.change_leases.queues:
                    self._changed(one, now_ms)
            case "commit_positions":
                self._moved(command.commit_positions)
            case "drop_group":
                for taking in list(self._takings.get(command.drop_group.group, {}).values()):
                    self._renew(taking)
            case "put_topic":
                self._renew_topic(command.put_topic.topic)
            case "drop_topic":
                self._renew_topic(command.drop_topic.topic)

    def _changed(self, change: state_pb2.QueueLeases, now_ms: int) -> None:
        taking = self._takings.get(change.group, {}).get(change.topic)
        if taking is None:
            return
        queue = Queue(change.topic, change.queue_id)
        for one in change.changes:
            value = Range(one.start, one.end, one.lease, one.visible_at_ms, one.attempts)
            taking.changed(queue, None if one.is_done else value, now_ms)
        memory, leases = taking.memories.get(queue), self._state.leases.get(change.group, queue)
        if memory is not None and leases is not None:
            memory.again.tidy(leases)
        taking.wake()

    def _moved(self, commit: state_pb2.CommitPositions) -> None:
        for each in commit.groups:
            for topic in {one.topic for one in each.positions}:
                self._renew(self._takings.get(each.group, {}).get(topic))

    def _renew_topic(self, topic: str) -> None:
        for by_topic in list(self._takings.values()):
            self._renew(by_topic.get(topic))

    def _renew(self, taking: Taking | None) -> None:
        """A topic or a group is not what it was: those who wait look again, and hear of it."""
        if taking is None:
            return
        name = taking.topic.name
        if name in self._state.topics:
            taking.renew(self._state.topics.find(name))
            self._watch(taking)
        else:
            self._drop(taking)
        taking.wake(is_all=True)

    # -- arrivals ---------------------------------------------------------------------------------

    def _watch(self, taking: Taking) -> None:
        self._unwatch(taking)
        self._watched[taking] = taking.queues
        for queue in taking.queues:
            self._arrivals.watch(queue, taking.arrived)

    def _unwatch(self, taking: Taking) -> None:
        for queue in self._watched.pop(taking, ()):
            self._arrivals.unwatch(queue, taking.arrived)

    def _drop(self, taking: Taking) -> None:
        by_topic = self._takings[taking.group]
        del by_topic[taking.topic.name]
        if not by_topic:
            del self._takings[taking.group]
        taking.is_dropped = True
        self._empty_since_ms.pop(taking, None)
        self._unwatch(taking)
