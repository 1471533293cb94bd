"""Messages out of the responses of a broker.

A response is parsed once, by protobuf, and only the heads of its runs become objects: where each
message stands is known by run. Message objects are made when they are taken. A message that cannot
be read, because an older version has stored it or its body cannot be decompressed, is logged,
counted and passed over then; its neighbours come through. Knows nothing of groups.
"""

from __future__ import annotations

import functools
import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import lz4.frame
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mq.client.messages import Origin, QueueRef, ReceivedMessage, Shared, make_messages
from mq.errors import Internal
from mq.limits import BODY_BYTES_MAX
from mq.names import DEAD_LETTER_PREFIX, GIVE_UP_TOPIC, RETRY_PREFIX, message_id
from mq.wire import varint
from mq.wire.v1 import consumer_pb2
from mq.wire.v1.consumer_pb2 import (
    PullResponse,
    ReceivedRun,
    ReceiveResponse,
    Run,
    SubscribeResponse,
)
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, COMPRESSION_NONE, Message
from mq.wire.v1.message_pb2 import Origin as WireOrigin

log = logging.getLogger(__name__)

# The tags of a run in a response, and of a frame in a run: field 15.
_RUN = _FRAME = 0x7A


class Unreadable(NamedTuple):
    """In the place of a message that cannot be read."""

    reason: str


class Runs:
    """Messages of one queue in a response, in the order of the queue and unopened. A message is
    known by its row, its place among them; the columns have one element a message.
    """

    __slots__ = (
        "_first",
        "_source",
        "count",
        "ends",
        "log_offsets",
        "queue_offsets",
        "starts",
        "stored_at_ms",
    )

    def __init__(self, source: _Source, first: int = 0) -> None:
        self._source = source
        # The place of the first one among all messages of the response.
        self._first = first
        self.count = 0
        # Where the frames stand in `data`.
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.queue_offsets: list[int] = []
        self.log_offsets: list[int] = []
        self.stored_at_ms: list[int] = []

    def add(self, run: Run, end: int) -> None:
        """The next run, which ends there in `data`: its frames are the last that it has. Raises
        Internal if they are not where their sizes say.
        """
        sizes = list(run.frame_sizes)
        if not sizes:
            return
        count, first = len(sizes), end - sum(sizes)
        if first < 0 or self.data[first] != _FRAME:
            raise unreadable("the frames of a run are not as long as their sizes say")
        self.count += count
        self.starts.append(first)
        self.log_offsets.append(run.log_offset)
        if count > 1:
            del sizes[-1]
            starts = list(accumulate(sizes, initial=first))
            self.starts += starts[1:]
            self.ends += starts[1:]
            shift = run.log_offset - first
            self.log_offsets += [start + shift for start in starts[1:]]
        self.ends.append(end)
        self.queue_offsets += range(run.queue_offset, run.queue_offset + count)
        self.stored_at_ms += [run.stored_at_ms] * count

    @property
    def data(self) -> bytes:
        return self._source.data

    def behind(self, queue_offset: int) -> Runs:
        """Without the messages before this one; may be empty."""
        row = self.row(queue_offset)
        rest = Runs(self._source, self._first + row)
        rest.count = self.count - row
        rest.starts, rest.ends = self.starts[row:], self.ends[row:]
        rest.queue_offsets, rest.log_offsets = self.queue_offsets[row:], self.log_offsets[row:]
        rest.stored_at_ms = self.stored_at_ms[row:]
        return rest

    def row(self, queue_offset: int) -> int:
        """The row of the first message at this offset or behind it."""
        return bisect_left(self.queue_offsets, queue_offset)

    def frame_bytes(self, start: int, end: int) -> int:
        return sum(self.ends[start:end]) - sum(self.starts[start:end])

    # Content

    @property
    def is_plain(self) -> bool:
        """All messages can be read, and their bodies are as they were sent."""
        return self._source.is_plain

    def bodies(self, start: int, end: int) -> list[bytes]:
        """As they are stored. Of a response that is plain."""
        found = self._source.bodies[self._first + start : self._first + end]
        if len(found) != end - start:
            raise unreadable("a run has not as many messages as frames")
        return found

    def messages(self, start: int, end: int) -> list[Message | Unreadable]:
        """As protobuf reads them, one by one."""
        frames = zip(self.starts[start:end], self.ends[start:end], strict=True)
        return [_parse(self.data[at:to]) for at, to in frames]

    def close(self) -> None:
        """No more of them will be asked for soon."""
        self._source.close()


class _Source:
    """A response with runs."""

    def __init__(self, data: bytes, kind: _Kind, *, is_sound: bool) -> None:
        self.data = data
        self._kind = kind
        # Protobuf reads all of it.
        self._is_sound = is_sound
        self._bodies: list[bytes] | None = None

    @property
    def bodies(self) -> list[bytes]:
        """Of all messages of the response; kept until it is closed."""
        if self._bodies is None:
            response = self._kind.message.FromString(self.data)
            runs = self._kind.runs(response)
            self._bodies = [message.body for run in runs for message in run.messages]
        return self._bodies

    def close(self) -> None:
        self._bodies = None

    @functools.cached_property
    def is_plain(self) -> bool:
        if not self._is_sound:
            return False
        try:
            probe = _probe_class().FromString(memoryview(self.data)[self._kind.head(self.data) :])
        except DecodeError:
            return False  # a message has a field that this client does not know
        while probe.HasField("inner"):
            probe = probe.inner
            if any(probe.compression):
                return False
        return True


class _Kind(NamedTuple):
    """A response that has runs: how protobuf names them, and where they stand in its bytes."""

    message: type[Any]
    runs: Callable[[Any], Iterable[Any]]
    # The start of the fields among which the runs are.
    head: Callable[[bytes], int]


_SUBSCRIBED = _Kind(
    SubscribeResponse,
    lambda response: response.delivery.runs,
    lambda data: varint.decode_length(data, 1)[1],
)
_PULLED = _Kind(PullResponse, lambda response: response.runs, lambda _: 0)
_RECEIVED = _Kind(ReceiveResponse, lambda response: [one.run for one in response.runs], lambda _: 0)


def parse_subscribe_response(data: bytes) -> tuple[SubscribeResponse, Runs]:
    """Raises Internal if more is broken than single messages."""
    response, source, runs = _parse_runs(_SUBSCRIBED, data)
    return response, _joined(source, runs)


def parse_pull_response(data: bytes) -> tuple[PullResponse, Runs]:
    """As `parse_subscribe_response`."""
    response, source, runs = _parse_runs(_PULLED, data)
    return response, _joined(source, runs)


def _joined(source: _Source, runs: Iterable[tuple[Run, int]]) -> Runs:
    joined = Runs(source)
    for run, end in runs:
        joined.add(run, end)
    return joined


def parse_receive_response(data: bytes) -> list[tuple[ReceivedRun, Runs]]:
    """As `parse_subscribe_response`."""
    response, source, runs = _parse_runs(_RECEIVED, data)
    found: list[tuple[ReceivedRun, Runs]] = []
    first = 0
    for one, (run, end) in zip(response.runs, runs, strict=True):
        found.append((one, Runs(source, first)))
        found[-1][1].add(run, end)
        first += found[-1][1].count
    return found


def _parse_runs(kind: _Kind, data: bytes) -> tuple[Any, _Source, list[tuple[Run, int]]]:
    """The response, and its runs with the position behind each."""
    is_sound = True
    try:
        response = kind.message.FromString(data)
    except DecodeError:
        is_sound = False
    try:
        if not is_sound:
            response = _raw_class(kind.message.DESCRIPTOR.name).FromString(data)
        runs = list(kind.runs(response))
        ends = _runs(data, _head_end(data, kind.head(data)))[1::2] if runs else ()
        return (
            response,
            _Source(data, kind, is_sound=is_sound),
            list(zip(runs, ends, strict=True)),
        )
    except IndexError:
        raise unreadable("it ends in the middle of a field") from None
    except (DecodeError, ValueError) as error:
        raise unreadable(error) from None


def unreadable(error: object) -> Internal:
    return Internal(f"what the broker sends cannot be read: {error}")


def _parse(frame: bytes) -> Message | Unreadable:
    try:
        return Run.FromString(frame).messages[0]
    except DecodeError as error:
        return Unreadable(f"it is no Message of the protocol: {error}")


@functools.cache
def _raw_class(name: str) -> Any:
    """A class of consumer.proto in which the messages of a Run stay bytes."""
    file = descriptor_pb2.FileDescriptorProto()
    consumer_pb2.DESCRIPTOR.CopyToProto(file)
    run = next(one for one in file.message_type if one.name == "Run")
    messages = next(one for one in run.field if one.name == "messages")
    messages.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    messages.ClearField("type_name")
    # In the common pool the names belong to the generated classes.
    pool = descriptor_pool.DescriptorPool()
    for one in consumer_pb2.DESCRIPTOR.dependencies:
        imported = descriptor_pb2.FileDescriptorProto()
        one.CopyToProto(imported)
        pool.Add(imported)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


@functools.cache
def _probe_class() -> Any:
    """Finds the compression of all messages of a response in one list. Runs and messages have the
    same field number, and fields that are declared as one embedded message are merged:

        message Probe { repeated int32 compression = 7; Probe inner = 15; }
    """
    field = descriptor_pb2.FieldDescriptorProto
    compression = field(
        name="compression", number=7, label=field.LABEL_REPEATED, type=field.TYPE_INT32
    )
    inner = field(name="inner", number=15, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE)
    inner.type_name = ".mq.client.Probe"
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="probe.proto", package="mq.client")
    file.message_type.add(name="Probe", field=[compression, inner])
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mq.client.Probe"))


# The frame of a larger message is not kept until its fields are read: its body would be kept twice.
_LARGE_BYTES = 4096


class Decoder:
    """Makes the messages of one consumer. `wanted_tags` has the tags of each topic that is filtered
    by tags: the broker compares hashes only, so that tags are compared here again.
    """

    def __init__(self, wanted_tags: Mapping[str, frozenset[str]] | None = None) -> None:
        self._wanted_tags = wanted_tags or {}
        self.unreadable_messages = 0

    def is_plain(self, queue: QueueRef, runs: Runs) -> bool:
        """Every message is readable, wanted, and as it was sent: none has to be opened to know."""
        return runs.is_plain and queue.topic not in self._wanted_tags and not _has_origins(queue)

    def messages(
        self,
        queue: QueueRef,
        runs: Runs,
        start: int,
        end: int,
        *,
        attempt: int = 1,
        handle: bytes = b"",
    ) -> list[ReceivedMessage | None]:
        """The rows [start, end); None for those that are filtered or unreadable."""
        shared = Shared(queue, attempt, handle)
        if not self.is_plain(queue, runs):
            return self._checked(shared, runs, start, end)
        made = make_messages(shared, runs, start, end, runs.bodies(start, end))
        if runs.frame_bytes(start, end) > _LARGE_BYTES * len(made):
            for one in made:
                one._read_all()  # noqa: SLF001
        return list(made)

    def _checked(
        self, shared: Shared, runs: Runs, start: int, end: int
    ) -> list[ReceivedMessage | None]:
        queue = shared.queue
        wanted = self._wanted_tags.get(queue.topic)
        found: list[ReceivedMessage | None] = []
        for row, wire in enumerate(runs.messages(start, end), start):
            body: bytes | Unreadable | None = None
            if isinstance(wire, Unreadable):
                body = wire
            elif wanted is None or wire.tag in wanted:
                body = decompressed(wire.body, wire.compression)
            if isinstance(body, Unreadable):
                name = message_id(queue.broker_set, runs.log_offsets[row])
                self._pass_over(queue, runs.queue_offsets[row], name, body)
                body = None
            made = None
            if body is not None and not isinstance(wire, Unreadable):
                (made,) = make_messages(shared, runs, row, row + 1, [body])
                made._read_all(wire)  # noqa: SLF001
                if _has_origins(queue) and wire.HasField("origin"):
                    _add_origin(made, wire.origin)
            found.append(made)
        return found

    def _pass_over(
        self, queue: QueueRef, queue_offset: int, name: str, unreadable: Unreadable
    ) -> None:
        self.unreadable_messages += 1
        log.error(
            "message %s, at %d of queue %d of topic %s, is passed over: %s",
            name,
            queue_offset,
            queue.queue_id,
            queue.topic,
            unreadable.reason,
        )


def _has_origins(queue: QueueRef) -> bool:
    """In other topics an origin is an invention of the producer."""
    return queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, GIVE_UP_TOPIC))


def _add_origin(message: ReceivedMessage, origin: WireOrigin) -> None:
    message.origin = Origin(
        origin.topic,
        origin.queue_id,
        origin.queue_offset,
        origin.message_id,
        origin.stored_at_ms,
        origin.reason,
    )
    message.attempt = max(message.attempt, origin.attempts + 1)
    message.stored_topic, message.topic = message.topic, origin.topic


def decompressed(
    body: bytes, compression: int, bytes_max: int = BODY_BYTES_MAX
) -> bytes | Unreadable:
    """The body as it was sent. Never unpacked beyond `bytes_max`: a few MiB may be a GiB."""
    if compression == COMPRESSION_NONE:
        return body
    if compression != COMPRESSION_LZ4:
        return Unreadable(f"this client does not know its compression {compression}")
    reader = lz4.frame.LZ4FrameDecompressor()
    try:
        # The size in the header may be false: it bounds the buffer only.
        told = lz4.frame.get_frame_info(body)["content_size"] or bytes_max
        found = bytes(reader.decompress(body, max_length=min(told, bytes_max) + 1))
    except RuntimeError as error:
        return Unreadable(f"its body cannot be decompressed: {error}")
    if len(found) > bytes_max:
        return Unreadable(f"its body has more than {bytes_max} bytes when it is decompressed")
    if not reader.eof:
        return Unreadable(f"its body cannot be decompressed: it is cut short, or not {told} bytes")
    return found


class Page(NamedTuple):
    """A PullResponse as it came over the wire, with the places of its runs, for readers of whole
    columns. Nothing opens a run: there may be as many as messages.

        PullResponse = status, next_offset, start, end, read_from | 0x7A, varint length, Run | ...

    `runs` has two places in `data` for each Run: its start and its end.
    """

    data: bytes
    runs: array[int]
    status: int
    next_offset: int
    start: int
    end: int
    read_from: str

    @property
    def has_messages(self) -> bool:
        return bool(self.runs)


def parse_page(data: bytes) -> Page:
    """Raises Internal if it is no PullResponse; the content of its runs is not checked."""
    try:
        at = _head_end(data)
        runs = _runs(data, at)
        head = PullResponse.FromString(data[:at])
    except IndexError:
        raise unreadable("it ends in the middle of a field") from None
    except (DecodeError, ValueError) as error:
        raise unreadable(error) from None
    return Page(data, runs, head.status, head.next_offset, head.start, head.end, head.read_from)


def _head_end(data: bytes, at: int = 0) -> int:
    """The position of the first run among the fields from there on."""
    while at < len(data) and data[at] != _RUN:
        wire_type = data[at] & 7
        value, at = varint.decode(data, at + 1)
        if wire_type == 2:
            at += value
        elif wire_type != 0:
            raise DecodeError(f"a field of wire type {wire_type} is none of a response")
    return min(at, len(data))


def _runs(data: bytes, at: int) -> array[int]:
    """From there to the end. Few steps for each: there may be thousands."""
    places = array("q")
    end = len(data)
    while at < end:
        if data[at] != _RUN:
            raise DecodeError(f"field tag {data[at]} at {at} is none of a run")
        length = data[at + 1]
        at += 2
        if length > 0x7F:
            # Varints of two bytes are inlined: with 24,000 runs a page, calls would take longer.
            if data[at] < 0x80:
                length += (data[at] - 1) << 7
                at += 1
            else:
                length, at = varint.decode(data, at - 1)
        places.append(at)
        at += length
        places.append(at)
    if at > end:
        raise DecodeError(f"the last run ends at {at}, and the answer at {end}")
    return places
