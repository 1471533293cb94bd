"""Creating, altering and deleting topics: decided here, done by applying a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary

from mq import names
from mq.broker.leading import Leadership
from mq.broker.security.audit import BROKER, CALLER, AuditTrail, Record
from mq.broker.security.quotas import Quotas
from mq.broker.state.machine import Machine
from mq.broker.state.topics import Topic
from mq.broker.writing import EntryWriter
from mq.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalRequest,
    MqError,
    PermissionDenied,
    TopicExists,
    TopicNotFound,
)
from mq.store.batch import Batch
from mq.wire.v1.cluster_pb2 import TopicRoute, TopicType
from mq.wire.v1.state_pb2 import Command, DropGroup, DropTopic, Many, PutGroup

QUEUES_MAX = names.QUEUE_ID_MAX + 1
PRIORITIES_MAX = 10


class Catalog:
    def __init__(
        self,
        writer: EntryWriter,
        machine: Machine,
        leadership: Leadership,
        audit: AuditTrail,
        quotas: Quotas,
        elsewhere: Callable[[str], Iterable[TopicRoute]],
        *,
        default_queues: int,
    ) -> None:
        self._writer = writer
        self._machine = machine
        self._leadership = leadership
        self._audit = audit
        self._quotas = quotas
        self._elsewhere = elsewhere
        self._default_queues = default_queues
        # Topics being deleted: a message written behind the delete would come back to life.
        self._leaving: set[str] = set()
        # Groups that begin, with their users.
        self._new_groups: dict[str, str] = {}
        # A topic is changed by one request at a time, which sees the changes of the one before.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, name: str, queues: int, type_: int, priorities: int = 0) -> Topic:
        """Creates the topic; returns the queues that this set has of it. Raises TopicExists,
        IllegalTopic, IllegalRequest, PermissionDenied.
        """
        self._check_name(name)
        self._check_alike(name, type_, priorities)
        async with self._turn(name):
            if name in self._machine.state.topics:
                raise TopicExists(
                    f"topic {name} exists already: `mq topic describe {name}` shows it"
                )
            return await self._put(self._new(name, queues, type_, priorities))

    async def ensure(self, topics: Iterable[str]) -> None:
        """Creates those that are missing, with the defaults."""
        for name in topics:
            async with self._turn(name):
                if name not in self._machine.state.topics:
                    self._check_name(name)
                    await self._put(self._new(name, 0, TopicType.TOPIC_NORMAL))

    async def ensure_internal(self, name: str, queues: int = 1) -> None:
        """A topic of the broker's own exists when this returns."""
        async with self._turn(name):
            if name not in self._machine.state.topics:
                self._leadership.check()
                names.check_topic(name)
                await self._put(self._new(name, queues, TopicType.TOPIC_NORMAL))

    async def alter(
        self,
        name: str,
        *,
        write_queues: int | None = None,
        read_queues: int | None = None,
        is_readable: bool | None = None,
        is_writable: bool | None = None,
    ) -> Topic:
        self._check_name(name)
        changes: dict[str, Any] = {
            "write_queues": _checked(write_queues, "write_queues"),
            "read_queues": _checked(read_queues, "read_queues"),
            "is_readable": is_readable,
            "is_writable": is_writable,
        }
        async with self._turn(name):
            topic = self._machine.state.topics.find(name)
            altered = topic._replace(**{k: v for k, v in changes.items() if v is not None})
            if altered.read_queues < altered.write_queues:
                raise IllegalRequest(
                    f"topic {name} would take messages in {altered.write_queues} queues and be "
                    f"read in {altered.read_queues}: read_queues must not be fewer"
                )
            _check_priorities(name, altered.priorities, altered.write_queues)
            return await self._put(altered)

    async def delete(self, name: str) -> None:
        self._check_name(name)
        async with self._turn(name):
            self._machine.state.topics.find(name)
            self._quotas.change_catalog(_caller_user(), name)
            self._leaving.add(name)
            try:
                # Batches that were let in before stand before it in the log.
                await asyncio.sleep(0)
                before = _audited(self._machine.state.topics.get(name))
                command = Command(drop_topic=DropTopic(topic=name))
                await self._propose(command, Record("delete_topic", f"topic:{name}", before))
            finally:
                self._leaving.discard(name)

    async def delete_group(self, group: str, member_count: int) -> None:
        """Raises GroupNotFound, GroupNotEmpty."""
        self._leadership.check()
        names.check_group(group)
        if member_count:
            raise GroupNotEmpty(f"group {group} has {member_count} members: stop them first")
        if group not in self._machine.state.offsets:
            raise GroupNotFound(f"there is no group {group}: `mq group list` shows those that are")
        self._quotas.change_catalog(_caller_user(), group)
        commands = [Command(drop_group=DropGroup(group=group))]
        commands += [Command(drop_topic=DropTopic(topic=one)) for one in self._topics_of(group)]
        record = Record("delete_group", f"group:{group}")
        await self._propose(Command(many=Many(commands=commands)), record)

    async def begin_group(self, group: str) -> None:
        """A member joins: if groups of its user or namespace are limited, a new one is known as
        theirs when this returns. Raises QuotaExceeded.
        """
        user, known = _caller_user(), self._machine.state.offsets
        if not self._quotas.limits_groups(user, group):
            return
        names.check_group(group)
        async with self._turn(f"%GROUP%{group}"):
            if group in known:
                return
            self._quotas.check_group(user, group, self._new_groups.items())
            self._new_groups[group] = user
            try:
                await self._propose(Command(put_group=PutGroup(group=group, owner=user)), None)
            finally:
                del self._new_groups[group]

    def _topics_of(self, group: str) -> list[str]:
        """Topics that only the group uses: its retries, and its dead letters if there are none."""
        letters = names.dead_letter_topic(group)
        queue = self._machine.store.queues.get(letters, 0)
        mine = [names.retry_topic(group)]
        mine += [letters] if queue is None or queue.start == queue.end else []
        return [one for one in mine if one in self._machine.state.topics]

    def writable(self, name: str, queue_id: int) -> None:
        """Raises TopicNotFound (also while it is being deleted), QueueNotFound,
        PermissionDenied.
        """
        self._machine.state.topics.writable(name, queue_id)
        self._check_staying(name)

    def present(self, name: str) -> Topic:
        """For batches that were accepted before. Raises TopicNotFound, also while it is being
        deleted.
        """
        self._check_staying(name)
        return self._machine.state.topics.find(name)

    def is_leaving(self, name: str) -> bool:
        """It is being deleted, and may stay if that fails."""
        return name in self._leaving

    def _check_alike(self, name: str, type_: int, priorities: int) -> None:
        """The access to a topic must not depend on the set that a message goes to."""
        for one in self._elsewhere(name):
            if (one.type, one.priorities) != (type_, priorities):
                kind = TopicType.Name(one.type).removeprefix("TOPIC_").lower()
                raise IllegalRequest(
                    f"topic {name} is {kind} and has {one.priorities} priorities in broker set "
                    f"{one.broker_set}: it has to be the same here"
                )

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    def _check_staying(self, name: str) -> None:
        if name in self._leaving:
            raise TopicNotFound(f"topic {name} is being deleted")

    def _check_name(self, name: str) -> None:
        self._leadership.check()
        names.check_topic(name)
        if names.is_internal_topic(name):
            raise PermissionDenied(f"topic {name}: names that start with % are the broker's own")

    def _new(self, name: str, queues: int, type_: int, priorities: int = 0) -> Topic:
        default = max(self._default_queues, priorities)
        count = _checked(queues or default, "queues") or 0
        if type_ not in TopicType.values():
            raise IllegalRequest(f"{type_} is no type of a topic")
        _check_priorities(name, priorities, count)
        return Topic(
            name,
            type_,
            count,
            count,
            is_readable=True,
            is_writable=True,
            created_at_ms=0,
            priorities=priorities,
            owner="" if names.is_internal_topic(name) else _caller_user(),
        )

    async def _put(self, topic: Topic) -> Topic:
        self._check_staying(topic.name)
        if topic.is_internal:
            return await self._write_topic(topic)
        self._quotas.change_catalog(_caller_user(), topic.name)
        with self._quotas.creating(topic):
            return await self._write_topic(topic)

    async def _write_topic(self, topic: Topic) -> Topic:
        known = self._machine.state.topics.get(topic.name)
        record = Record(
            "create_topic" if known is None else "alter_topic",
            f"topic:{topic.name}",
            _audited(known),
            _audited(topic),
        )
        command = Command(put_topic=topic.command())
        await self._propose(command, None if topic.is_internal else record)
        try:
            return self._machine.state.topics.find(topic.name)
        except MqError:
            raise TopicNotFound(f"topic {topic.name} was deleted at the same moment") from None

    async def _propose(self, command: Command, record: Record | None) -> None:
        batches: list[Batch] = []
        if record is not None:
            command, batches = self._audit.recorded(command, record)
        await self._writer.write_uncancelled(command, batches)


def _caller_user() -> str:
    """Empty: anonymous, or the broker itself."""
    caller = CALLER.get()
    return "" if caller is BROKER else caller.user


def _audited(topic: Topic | None) -> dict[str, object] | None:
    if topic is None:
        return None
    return {
        "type": TopicType.Name(topic.type),
        "write_queues": topic.write_queues,
        "read_queues": topic.read_queues,
        "is_readable": topic.is_readable,
        "is_writable": topic.is_writable,
        "priorities": topic.priorities,
    }


def _check_priorities(name: str, priorities: int, queues: int) -> None:
    if priorities == 1 or priorities > PRIORITIES_MAX:
        raise IllegalRequest(
            f"priorities = {priorities}: 2 to {PRIORITIES_MAX}, or 0 for a topic without"
        )
    if queues < priorities:
        raise IllegalRequest(
            f"topic {name} would have {priorities} priorities in {queues} queues: each needs one"
        )


def _checked(count: int | None, what: str) -> int | None:
    if count is not None and not 1 <= count <= QUEUES_MAX:
        raise IllegalRequest(f"{what} = {count}: a topic has 1 to {QUEUES_MAX} queues")
    return count
