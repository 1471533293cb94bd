"""Namespaces, on the wire: a caller that has one uses local names, everything behind the dispatcher
full ones (`mq.names`).

Requests and answers of such a caller are rewritten from bytes to bytes: names in requests get their
namespace, names in answers lose it. What an answer lists of other namespaces is left out; an answer
that is itself about one becomes PermissionDenied. The table of `namespace_fields` says where names
are, the descriptors of the methods which fields to walk, compiled once a method. Messages are not
opened: a prepared batch is walked up to its frames, a delivery up to its runs.

Retries and dead letters are the exception: each has an origin, with the full name of a topic. A run
of them becomes one run a message, because its place in the log is told by the sizes of those before
it.

The walk reads fields as protobuf does, whatever their order and number: a name that it passed over
would be one of the whole cluster.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from mq import names
from mq.broker.security.gate import Principal
from mq.errors import (
    IllegalFilter,
    IllegalGroup,
    IllegalRequest,
    IllegalTopic,
    MalformedBatch,
    MqError,
    PermissionDenied,
)
from mq.http2.status import Status
from mq.rpc.context import Context
from mq.rpc.namespace_fields import FIELDS, REFUSED, Kind
from mq.store.batch import prepared_header_bytes
from mq.wire import varint
from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    transaction_pb2,
)

HEADER: Final = "mq-namespace"
# Fields of a message that are walked in one turn of the loop; longer ones go to a thread.
_TURN_FIELDS_MAX: Final = 2_000
# No message of ours is nested deeper, but a client can send one.
_DEPTH_MAX: Final = 16
# Longer ones are not legal, and must not get into the caches.
_NAME_BYTES_MAX: Final = 160
_BYTES: Final = 2
# Runs and messages: the highest field number of those that have them, and so the last.
_LAST_FIELD: Final = b"\x7a"
_LAST_KEY: Final = 0x7A
_SIZE: Final = struct.Struct("<I")
# Of topics in which messages have origins.
_ORIGIN_PREFIXES: Final = (names.RETRY_PREFIX.encode(), names.DEAD_LETTER_PREFIX.encode())
# No batch starts so.
_NO_BATCH: Final = b"\x0a"

_ELSEWHERE: Final = "(another namespace)"
_OWN_PREFIXES: Final = (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX)
# The group is what makes it a name: letters or digits behind a %.
# A dot that ends a sentence is none of it.
_FULL_NAME: Final = re.compile(
    r"[A-Za-z0-9|_-]*%[%|_-]*([A-Za-z0-9](?:[A-Za-z0-9%|_-]|\.(?=[A-Za-z0-9%|_-]))*)?", re.ASCII
)

_MODULES: Final = (admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, transaction_pb2)


# -- names as bytes -------------------------------------------------------------------------------

_Rename: TypeAlias = Callable[[str, bytes], bytes | None]


def _cached(rename: Callable[[str, str], str | None]) -> _Rename:
    def renamed(namespace: str, name: bytes) -> bytes | None:
        made = rename(namespace, name.decode())
        return None if made is None else made.encode()

    remembered = functools.lru_cache(maxsize=16_384)(renamed)
    return lambda namespace, name: (
        remembered(namespace, name) if len(name) <= _NAME_BYTES_MAX else renamed(namespace, name)
    )


def _local(local: Callable[[str, str], str | None]) -> _Rename:
    """An empty name says that there is none."""
    return _cached(lambda namespace, name: local(namespace, name) if name else "")


def local_text(namespace: str, text: str, *, hides: bool = True) -> str:
    """Words of the broker with local names; `hides`: and without those of other namespaces."""

    def shown(found: re.Match[str]) -> str:
        name = found[0]
        local = names.local_name(namespace, name)
        if local is not None:
            return local
        if name in _OWN_PREFIXES or not found[1]:
            # A name that goes on with what is not legal, or no name at all.
            is_own = name == f"{namespace}%" and not text[found.end() :][:1].isspace()
            return "" if is_own else name
        return _ELSEWHERE if hides else name

    return _FULL_NAME.sub(shown, text) if "%" in text else text


_FULL: Final[dict[Kind, _Rename]] = {
    Kind.TOPIC: _cached(names.full_topic),
    Kind.GROUP: _cached(names.full_group),
    Kind.PRODUCER: _cached(names.full_producer_id),
}
_LOCAL: Final[dict[Kind, _Rename]] = {
    Kind.TOPIC: _local(names.local_name),
    Kind.GROUP: _local(names.local_name),
    Kind.PRODUCER: _local(names.local_producer_id),
    Kind.TEXT: lambda namespace, text: local_text(namespace, text.decode()).encode(),
    Kind.HIDDEN: lambda *_: None,
}


def _batch_topic(namespace: str, topic: bytes) -> bytes | None:
    """A batch fails alone, by a topic that is refused for it."""
    try:
        return _FULL[Kind.TOPIC](namespace, topic)
    except (IllegalTopic, UnicodeDecodeError):
        return names.OUTSIDE_TOPIC.encode()


# -- plans ----------------------------------------------------------------------------------------


# The new contents of a field whose content is at [start, end); mostly one.
_Rewrite: TypeAlias = "Callable[[_Walk, bytes, int, int], Sequence[bytes]]"


class _Field(NamedTuple):
    """Of a message, with names in it."""

    # The key of the field on the wire.
    head: bytes
    rewrite: _Rewrite
    is_repeated: bool


# By the key of the field, which is length-delimited. An empty plan: no names.
_Plan: TypeAlias = dict[int, _Field]


class _Foreign(Exception):
    """The message is about another namespace."""


class _TooLong(Exception):
    """A message has more fields than there is time for in one turn of the loop."""


class _Last(Exception):
    """From this field on, everything stays as it is."""


class _Walk:
    """Over the messages of one direction of a call."""

    def __init__(self, namespace: str, topic: bytes = b"") -> None:
        self.namespace = namespace
        # The full name that was met last: messages that follow are in this topic.
        self.topic = topic
        self._fields_left = 0.0
        self._depth = 0

    def rewritten(self, data: bytes, plan: _Plan, fields_max: float) -> bytes:
        """Raises IllegalRequest, IllegalTopic, IllegalGroup; _Foreign, _TooLong."""
        self._fields_left, self._depth = fields_max, 0
        try:
            return self.message(data, 0, len(data), plan)
        except (IndexError, ValueError):
            raise IllegalRequest(
                "the bytes of the request are not the message it should be"
            ) from None

    def message(self, data: bytes, position: int, end: int, plan: _Plan) -> bytes:
        """As `rewritten`, of what stands at [position, end). Raises ValueError or IndexError if it
        cannot be read.
        """
        if self._depth >= _DEPTH_MAX:
            raise ValueError("a message that is nested too deep")
        self._depth += 1
        try:
            return self._walked(data, position, end, plan)
        finally:
            self._depth -= 1

    def _walked(self, data: bytes, position: int, end: int, plan: _Plan) -> bytes:
        parts: list[bytes | memoryview] = []
        view, copied = memoryview(data), position
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _TooLong
            start = position
            key, content, position = _field_at(data, start)
            field = plan.get(key)
            if field is None or position > end:
                continue
            try:
                made = field.rewrite(self, data, content, position)
            except _Last:
                position = end
                break
            except _Foreign:
                if not field.is_repeated:
                    raise
                made = ()
            parts.append(view[copied:start])
            copied = position
            for one in made:
                parts += (field.head, varint.encode(len(one)), one)
        if position != end:
            raise ValueError("a message that is cut short")
        if not copied:
            return data  # all of it, and no name in it
        parts.append(view[copied:end])
        return b"".join(parts)


def _field_at(data: bytes, position: int) -> tuple[int, int, int]:
    """Key of the field there; where its content begins, if it has a length; and its end."""
    key = data[position]
    content = position + 1
    if key >= 0x80:
        key, content = varint.decode(data, position)
        if key >> 32:
            raise ValueError("a key of more than 32 bits")
    wire_type = key & 7
    if wire_type == _BYTES:
        size = data[content]
        if size < 0x80:
            return key, content + 1, content + 1 + size
        size, content = varint.decode(data, content)
        return key, content, content + size
    if wire_type == 0:
        while data[content] >= 0x80:
            content += 1
        return key, content, content + 1
    if wire_type in (1, 5):
        return key, content, content + (8 if wire_type == 1 else 4)
    raise ValueError("a field of an unknown kind")


# -- fields ---------------------------------------------------------------------------------------


def _renaming(rename: _Rename, *, is_topic: bool) -> _Rewrite:
    def rewrite(walk: _Walk, data: bytes, start: int, end: int) -> Sequence[bytes]:
        name = data[start:end]
        made = rename(walk.namespace, name)
        if made is None:
            raise _Foreign
        if is_topic:
            walk.topic = name
        return (made,)

    return rewrite


def _origin_topic(walk: _Walk, data: bytes, start: int, end: int) -> Sequence[bytes]:
    """A group may have read a topic of elsewhere, if an operator let it: without its name."""
    made = _LOCAL[Kind.TOPIC](walk.namespace, data[start:end])
    return () if made is None else (made,)


def _inner(plan: _Plan) -> _Rewrite:
    return lambda walk, data, start, end: (walk.message(data, start, end, plan),)


def _batch(plan: _Plan) -> _Rewrite:
    """Frames of a prepared batch are not walked: the store finds them where the header ends, and
    takes nothing but frames there. What is no batch is refused alone, by the store.
    """

    def rewrite(walk: _Walk, data: bytes, start: int, end: int) -> Sequence[bytes]:
        batch = memoryview(data)[start:end]
        try:
            header_bytes = prepared_header_bytes(batch)
            header = walk.message(data, start, start + (header_bytes or len(batch)), plan)
        except (MalformedBatch, IndexError, ValueError):
            return (_NO_BATCH,)
        return (b"".join((header, batch[header_bytes:])) if header_bytes else header,)

    return rewrite


def _runs(walk: _Walk, data: bytes, start: int, end: int) -> Sequence[bytes]:
    """A Run of a topic in which messages have origins; raises _Last for one of another topic."""
    if not walk.topic.startswith(_ORIGIN_PREFIXES):
        raise _Last
    return _run_a_message(walk, data, start, end)


def _run_a_message(walk: _Walk, data: bytes, start: int, end: int) -> list[bytes]:
    at = _last_field(data, start, end)
    run = consumer_pb2.RawRun.FromString(data[start:at])
    made = []
    for (size,) in _SIZE.iter_unpack(run.frame_sizes):
        _, content, behind = _field_at(data, at)
        message = _message(walk, data, content, behind)
        frame = b"".join((_LAST_FIELD, varint.encode(len(message)), message))
        run.frame_sizes = _SIZE.pack(len(frame))
        made.append(run.SerializeToString() + frame)
        run.queue_offset += 1
        run.log_offset += size
        at = behind
    return made


def _received_run(plan: _Plan) -> _Rewrite:
    """As `_runs`, of a ReceivedRun: each run has its own topic and lease."""

    def rewrite(walk: _Walk, data: bytes, start: int, end: int) -> Sequence[bytes]:
        at = _last_field(data, start, end)
        head = walk.message(data, start, at, plan)
        if not walk.topic.startswith(_ORIGIN_PREFIXES):
            return (head + data[at:end],)
        _, content, behind = _field_at(data, at)
        return [
            b"".join((head, _LAST_FIELD, varint.encode(len(run)), run))
            for run in _run_a_message(walk, data, content, behind)
        ]

    return rewrite


def _stored_message(walk: _Walk, data: bytes, start: int, end: int) -> Sequence[bytes]:
    if not walk.topic.startswith(_ORIGIN_PREFIXES):
        return (data[start:end],)
    return (_message(walk, data, start, end),)


def _message(walk: _Walk, data: bytes, start: int, end: int) -> bytes:
    """A message with an origin; one that cannot be read stays as it is."""
    try:
        return walk.message(data, start, end, _MESSAGE_PLAN)
    except (IndexError, ValueError):
        return data[start:end]


def _last(*_: object) -> Sequence[bytes]:
    raise _Last


def _last_field(data: bytes, position: int, end: int) -> int:
    """Where the first field of the number 15 begins; the end if there is none."""
    while position < end and data[position] != _LAST_KEY:
        position = _field_at(data, position)[2]
    return position


# -- methods --------------------------------------------------------------------------------------


class _Compiler:
    """Plans of one direction, by message."""

    def __init__(self, renames: dict[Kind, _Rename], *, is_request: bool) -> None:
        self._renames = renames
        self._is_request = is_request
        self._plans: dict[str, _Plan] = {}

    def plan(self, descriptor: Any) -> _Plan:
        name = descriptor.full_name
        if name not in self._plans:
            plan = self._plans[name] = {}
            for field in descriptor.fields:
                rewrite = self._rewrite(descriptor, field)
                if rewrite is not None:
                    key = field.number << 3 | _BYTES
                    plan[key] = _Field(varint.encode(key), rewrite, field.is_repeated)
        return self._plans[name]

    def _rewrite(self, descriptor: Any, field: Any) -> _Rewrite | None:
        kind = FIELDS.get(f"{descriptor.name}.{field.name}")
        if kind is not None:
            if descriptor.name == "Origin":
                return _origin_topic
            rename = self._renames[kind]
            if descriptor.name == "Batch" and kind == Kind.TOPIC:
                rename = _batch_topic
            return _renaming(rename, is_topic=kind == Kind.TOPIC)
        if field.message_type is None:
            return None
        if field.message_type.name == "Message":
            return self._of_messages(descriptor)
        is_recursive = field.message_type.full_name == descriptor.full_name
        plan = self.plan(field.message_type)
        match field.message_type.name:
            case "Batch":
                return _batch(plan)
            case "Run":
                return _runs
            case "ReceivedRun":
                return _received_run(plan)
        return _inner(plan) if plan or is_recursive else None

    def _of_messages(self, descriptor: Any) -> _Rewrite | None:
        if self._is_request:
            return None  # they need not be the last field, and what follows counts
        return _stored_message if descriptor.name == "StoredMessage" else _last


_REQUESTS: Final = _Compiler(_FULL, is_request=True)
_ANSWERS: Final = _Compiler(_LOCAL, is_request=False)
_METHODS: Final = {
    f"{service.name}/{method.name}": method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_MESSAGE_PLAN: Final = _ANSWERS.plan(message_pb2.Message.DESCRIPTOR)


@functools.cache
def _plans(method: str) -> tuple[_Plan, _Plan]:
    """Of its requests and its answers. Methods of other services have no names."""
    if method not in _METHODS:
        return {}, {}
    descriptor = _METHODS[method]
    return _REQUESTS.plan(descriptor.input_type), _ANSWERS.plan(descriptor.output_type)


class NamespacedCall:
    """The translation of one call; raises PermissionDenied for a method that is of all namespaces.

    One request and one answer at a time: those of a stream come one after the other.
    """

    def __init__(self, method: str, namespace: str) -> None:
        if method in REFUSED:
            raise PermissionDenied(
                f"{method.partition('/')[2]} has no place in namespace {namespace}: "
                f"{REFUSED[method]}"
            )
        self.namespace = namespace
        self._requests, self._answers = _plans(method)
        self._request_walk, self._answer_walk = _Walk(namespace), _Walk(namespace)

    async def request(self, data: bytes) -> bytes:
        """With full names. Raises IllegalRequest, IllegalTopic, IllegalGroup."""
        made = self.short_request(data)
        if made is None:
            walk = self._request_walk.rewritten
            made = await asyncio.to_thread(walk, data, self._requests, math.inf)
        return made

    def short_request(self, data: bytes) -> bytes | None:
        """As `request`; None: it takes longer than one turn of the loop should."""
        try:
            return self._request_walk.rewritten(data, self._requests, _TURN_FIELDS_MAX)
        except _TooLong:
            return None

    async def answer(self, data: bytes) -> bytes:
        """With local names. Raises PermissionDenied if it is about another namespace."""
        made = self.short_answer(data)
        if made is None:
            made = await asyncio.to_thread(self._answered, data, math.inf)
        return made

    def short_answer(self, data: bytes) -> bytes | None:
        try:
            return self._answered(data, _TURN_FIELDS_MAX)
        except _TooLong:
            return None

    def _answered(self, data: bytes, fields_max: float) -> bytes:
        if not self._answers:
            return data
        # Messages that are pulled are in the topic that was asked for.
        self._answer_walk.topic = self._request_walk.topic
        try:
            return self._answer_walk.rewritten(data, self._answers, fields_max)
        except _Foreign:
            raise PermissionDenied(f"this is not in namespace {self.namespace}") from None


def explained(error: MqError, namespace: str) -> MqError:
    """The error with local names. It may be the error of several calls: a copy is changed."""
    text = str(error)
    # Names that are not legal are the caller's own, and a filter is its own text.
    hides = not isinstance(error, IllegalTopic | IllegalGroup)
    local = local_text(namespace, text, hides=hides)
    if local == text or isinstance(error, IllegalFilter):
        return error
    made = type(error).__new__(type(error))
    made.__dict__.update(error.__dict__)
    made.args = (local,)
    return made


class NamespacedContext:
    """A stream as its handler sees it: with full names on this side."""

    def __init__(self, context: Context, call: NamespacedCall) -> None:
        self._context = context
        self._call = call
        # The request that was offered last, as it came and as it is.
        self._offered: tuple[bytes, bytes] | None = None

    @property
    def caller(self) -> Principal:
        return self._context.caller

    @caller.setter
    def caller(self, caller: Principal) -> None:
        self._context.caller = caller

    def peer(self) -> str:
        return self._context.peer()

    def header(self, name: str) -> str | None:
        return self._context.header(name)

    def certificate_names(self) -> Sequence[str]:
        return self._context.certificate_names()

    def is_encrypted(self) -> bool:
        return self._context.is_encrypted()

    def time_remaining(self) -> float | None:
        return self._context.time_remaining()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._context.add_done_callback(callback)

    async def read(self, take: Callable[[bytes], bool] | None = None) -> bytes | None:
        data = await self._context.read(None if take is None else self._taker(take))
        if data is None:
            return None
        if self._offered is not None and self._offered[0] is data:
            return self._offered[1]
        return await self._call.request(data)

    def _taker(self, take: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        def taken(data: bytes) -> bool:
            try:
                made = self._call.short_request(data)
            except MqError:
                return False  # and `read` raises it
            if made is None:
                return False
            # A request that is declined comes back from `read`, as the same object.
            self._offered = data, made
            return take(made)

        return taken

    async def write(self, message: bytes) -> None:
        await self._context.write(await self._call.answer(message))

    async def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        await self.write(b"".join(parts))

    def try_write(self, message: bytes) -> bool:
        made = self._call.short_answer(message)
        return made is not None and self._context.try_write(made)

    def reply(self, message: bytes) -> None:
        raise TypeError("a stream has more than one answer")

    def finish(
        self, code: Status, text: str = "", metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> None:
        self._context.finish(code, text, metadata)
