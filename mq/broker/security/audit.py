"""The audit trail: who changed what, and who was refused, as messages of `%SYS%AUDIT`.

The body of a record is JSON; its tag is the kind of change, its keys are what was changed and the
user that did it. A change that is an entry of the log carries its record in that entry: there is
none without the other. What is changed otherwise, as the options of a node, is recorded right
after it.

Refusals are sampled: the first of each user, action and resource in a minute is recorded, and those
left out are counted. About once a second they become one entry. A node that does not lead has no
log to write to: what it refuses is counted there and left to its own log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from mq import names
from mq.broker.leading import Leadership
from mq.broker.retry.origins import batch_of
from mq.broker.security.gate import Denial
from mq.broker.state.machine import Machine, ProposedEntry
from mq.broker.state.topics import Topic
from mq.broker.writing import EntryWriter
from mq.errors import MqError
from mq.logging import get_logger
from mq.store.batch import Batch
from mq.wire.v1.cluster_pb2 import TopicType
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.state_pb2 import Command, Many

log = get_logger(__name__)

DENIED = "denied"
_MINUTE_MS = 60_000
_FLUSH_MS = 1_000
# Of one minute: callers choose what they are refused.
_DENIALS_MAX = 200
# Records that wait for their entry.
_WAITING_MAX = 1_000
# A part of a record that is longer is cut: an entry has to hold many.
_TEXT_MAX = 1_000


class Caller(Protocol):
    """As `mq.broker.security.gate.Principal`."""

    @property
    def user(self) -> str: ...

    @property
    def credential(self) -> str: ...

    @property
    def address(self) -> str: ...


class _Nobody(NamedTuple):
    user: str = ""
    credential: str = ""
    address: str = ""


# What the broker does by itself.
BROKER: Caller = _Nobody("%broker")
# The caller of the request that is served.
CALLER: ContextVar[Caller] = ContextVar("caller", default=BROKER)


class Record(NamedTuple):
    """`before` and `after` are what JSON can say; None: there is none. No secret is in them."""

    what: str
    subject: str
    before: object = None
    after: object = None
    outcome: str = "done"
    # More of it, beside the fields that all have.
    details: dict[str, object] = {}  # noqa: RUF012 - a tuple's default, which nothing changes


class AuditTrail:
    def __init__(
        self,
        writer: EntryWriter,
        machine: Machine,
        leadership: Leadership,
        now_ms: Callable[[], int],
        *,
        is_on: bool,
    ) -> None:
        """Changes of users and policies are recorded always, the rest if `is_on`."""
        self._writer = writer
        self._machine = machine
        self._leadership = leadership
        self._now_ms = now_ms
        self.is_on = is_on
        self._waiting: list[Message] = []
        self._flushed_ms = 0
        # Of this minute: what was refused, each of it once, and how many beside these.
        self._minute = 0
        self._denied: set[tuple[str, str, str]] = set()
        self._left_out = 0
        # Of all time.
        self.denials_total = 0
        self.unrecorded_total = 0

    # -- changes ----------------------------------------------------------------------------------

    def entry(self, command: Command, records: Sequence[Record], by: Caller) -> ProposedEntry:
        """The command and its records as one entry."""
        return self._entry([self._message(one, by) for one in records], command)

    def recorded(self, command: Command, record: Record) -> tuple[Command, list[Batch]]:
        """To be written as one entry: a change that the present caller has asked for."""
        if not self.is_on:
            return command, []
        entry = self.entry(command, [record], CALLER.get())
        return entry.command or command, [*entry.batches]

    def changed(self, record: Record, by: Caller | None = None) -> None:
        """Of what is not in the log: it is recorded in an entry of its own, a moment later."""
        if not self.is_on:
            return
        by = by or CALLER.get()
        if not self._leadership.is_serving:
            log.info("changed", what=record.what, subject=record.subject, user=by.user)
            return
        self._add(self._message(record, by))
        self._flush()

    async def write(self, record: Record, by: Caller) -> None:
        """Of what may be done only if it is recorded: it is durable when this returns. Raises as
        `Consensus.propose`.
        """
        entry = self._entry([self._message(record, by)])
        await self._writer.write(entry.command, entry.batches)

    # -- refusals ---------------------------------------------------------------------------------

    def denied(self, denial: Denial) -> None:
        """Must not wait: it is called for every call that is refused, or would be."""
        need = denial.need
        action, resource = ("call", "") if need is None else (str(need[0]), need[1].subject)
        outcome = DENIED if denial.is_enforced else "observed"
        self.refused(denial.principal, action, resource, denial.reason, outcome)

    def refused(
        self, by: Caller, action: str, resource: str, reason: str, outcome: str = DENIED
    ) -> None:
        self.denials_total += 1
        if not self._leadership.is_serving:
            self.unrecorded_total += 1
            return
        self._begin_minute()
        # Unknown callers are told apart by their addresses.
        key = by.user or by.address, action, resource
        if key in self._denied or len(self._denied) >= _DENIALS_MAX:
            self._left_out += 1
            self.unrecorded_total += 1
            return
        self._denied.add(key)
        details: dict[str, object] = {"action": action, "reason": reason}
        self._add(self._message(Record(DENIED, resource, None, None, outcome, details), by))

    def _begin_minute(self) -> None:
        minute = self._now_ms() // _MINUTE_MS
        if minute == self._minute:
            return
        self._minute = minute
        self._denied.clear()
        if self._left_out:
            details: dict[str, object] = {"left_out": self._left_out}
            self._left_out = 0
            self._add(self._message(Record(DENIED, "", None, None, DENIED, details), BROKER))

    # -- the entries ------------------------------------------------------------------------------

    def lead(self) -> None:
        """This node serves from now on."""
        self._waiting.clear()
        self._denied.clear()
        self._left_out = 0

    def step_down(self) -> None:
        self.unrecorded_total += len(self._waiting) + self._left_out
        self.lead()

    def tick(self) -> None:
        """A few times a second, while this node serves."""
        self._begin_minute()
        if self._waiting and abs(self._now_ms() - self._flushed_ms) >= _FLUSH_MS:
            self._flush()

    def _add(self, message: Message) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            self.unrecorded_total += 1
        else:
            self._waiting.append(message)

    def _flush(self) -> None:
        messages, self._waiting = self._waiting, []
        self._flushed_ms = self._now_ms()

        def done(error: MqError | None) -> None:
            if error is not None:
                self.unrecorded_total += len(messages)
                log.warning("audit records are lost", records=len(messages), error=str(error))

        self._writer.propose(self._entry(messages), done)

    def _entry(self, messages: Sequence[Message], command: Command | None = None) -> ProposedEntry:
        """The first one creates the topic."""
        if names.AUDIT_TOPIC not in self._machine.state.topics:
            created = [Command(put_topic=_TOPIC.command())]
            created += [command] if command is not None else []
            command = Command(many=Many(commands=created))
        return ProposedEntry([batch_of(names.AUDIT_TOPIC, 0, messages)], command)

    def _message(self, record: Record, by: Caller) -> Message:
        now_ms = self._now_ms()
        body = {
            "at_ms": now_ms,
            "user": by.user,
            "credential": by.credential,
            "address": by.address,
            "what": record.what,
            "subject": record.subject[:_TEXT_MAX],
            "before": record.before,
            "after": record.after,
            "outcome": record.outcome,
            **{key: _cut(value) for key, value in record.details.items()},
        }
        return Message(
            body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "replace"
            ),
            tag=record.what,
            keys=_keys((record.subject, by.user and f"user:{by.user}")),
            born_at_ms=now_ms,
        )


def _cut(value: object) -> object:
    return value[:_TEXT_MAX] if isinstance(value, str) else value


def _keys(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(one[:_TEXT_MAX] for one in texts if one))


_TOPIC = Topic(
    names.AUDIT_TOPIC,
    TopicType.TOPIC_NORMAL,
    write_queues=1,
    read_queues=1,
    is_readable=True,
    is_writable=True,
    created_at_ms=0,
)
