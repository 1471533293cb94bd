"""Messages out of the responses of a broker.

A response is parsed once, by protobuf, and only the heads of its runs become objects: where each
message stands is known by run. Message objects are made when they are taken. A message that cannot
be read, because an older version has stored it or its body cannot be decompressed, is logged,
counted and passed over then; its neighbours come through. Knows nothing of groups.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
# The tag of the body in a message.
_BODY = 0x0A


class Unreadable(NamedTuple):
    """In the place of a message that cannot be read."""

    reason: str


class RunPlace(NamedTuple):
    """Messages that stand together in the log: where they are in a response, unopened. `row` is the
    place of the first one among all messages of the response, `queue_offset` that of the same one.
    """

    row: int
    queue_offset: int
    stored_at_ms: int
    # The positions of the frames, and of the end of the last: a range if all have the same size.
    starts: Sequence[int]
    # The position of a frame and this are its log offset.
    log_shift: int

    @property
    def messages(self) -> int:
        return len(self.starts) - 1


_row = operator.attrgetter("row")
_queue_offset = operator.attrgetter("queue_offset")


class Runs:
    """Messages of one queue in a response, in the order of the queue and unopened. A message is
    known by its row, its place among them. What is told of all of them costs a step a run.
    """

    __slots__ = ("_first", "_places", "_source", "count")

    def __init__(self, source: _Source, places: Sequence[RunPlace], first: int) -> None:
        """Those of these runs from the row `first` of the response on."""
        self._source = source
        self._places = places
        self._first = first
        self.count = places[-1].row + places[-1].messages - first if places else 0

    @property
    def data(self) -> bytes:
        return self._source.data

    def spans(self, start: int, end: int) -> Iterator[tuple[RunPlace, int, int]]:
        """The runs of the rows [start, end), with the first and the end of their messages that are
        among these.
        """
        at, end = self._first + start, self._first + end
        number = bisect_right(self._places, at, key=_row) - 1
        while at < end:
            place = self._places[number]
            to = min(end, place.row + place.messages)
            yield place, at - place.row, to - place.row
            at, number = to, number + 1

    def behind(self, queue_offset: int) -> Runs:
        """Without the messages before this one; may be empty."""
        return Runs(self._source, self._places, self._first + self.row(queue_offset))

    def row(self, queue_offset: int) -> int:
        """The row of the first message at this offset or behind it."""
        number = bisect_right(self._places, queue_offset, key=_queue_offset) - 1
        if number < 0:
            return 0
        place = self._places[number]
        row = place.row + min(queue_offset - place.queue_offset, place.messages)
        return max(0, row - self._first)

    def queue_offset(self, row: int) -> int:
        place = self._places[bisect_right(self._places, self._first + row, key=_row) - 1]
        return place.queue_offset + self._first + row - place.row

    def log_offset(self, row: int) -> int:
        place = self._places[bisect_right(self._places, self._first + row, key=_row) - 1]
        return place.starts[self._first + row - place.row] + place.log_shift

    def queue_offsets(self, start: int, end: int) -> list[int]:
        found: list[int] = []
        for place, at, to in self.spans(start, end):
            found += range(place.queue_offset + at, place.queue_offset + to)
        return found

    def frame_bytes(self, start: int, end: int) -> int:
        return sum(place.starts[to] - place.starts[at] for place, at, to in self.spans(start, end))

    # Content

    @property
    def is_plain(self) -> bool:
        """All messages can be read, and their bodies are as they were sent."""
        return self._source.is_plain

    def bodies(self, start: int, end: int) -> list[bytes]:
        """As they are stored. Of a response that is plain."""
        found = self._source.bodies(self.spans(start, end))
        if len(found) != end - start:
            raise unreadable("a run has not as many messages as frames")
        return found

    def messages(self, start: int, end: int) -> list[Message | Unreadable]:
        """As protobuf reads them, one by one."""
        return [
            _parse(self.data[place.starts[row] : place.starts[row + 1]])
            for place, at, to in self.spans(start, end)
            for row in range(at, to)
        ]

    def layout(self, place: RunPlace) -> Layout | None:
        """How the messages of the run are alike; None if they are not."""
        return self._source.layout(place)

    def fields(self, place: RunPlace, start: int, end: int) -> list[bytes]:
        """The fields of the messages [start, end) of the run, for `ReceivedMessage`: each is a
        frame; or, where frames are alike, a Message without its body, which is the same object for
        all of them if it can be. Of a response that is plain.
        """
        data, starts = self.data, place.starts
        layout = self.layout(place)
        if layout is not None and layout.tail is not None:
            return [layout.tail] * (end - start)
        if layout is not None:
            tails = range(layout.tail_at, starts[-1], layout.size)[start:end]
            own = layout.size - (layout.tail_at - starts[0])
            return [data[at : at + own] for at in tails]
        ends = itertools.islice(starts, start + 1, end + 1)
        return [data[at:to] for at, to in zip(starts[start:end], ends, strict=True)]

    def each(self) -> list[Runs]:
        """Each run by itself."""
        return [Runs(self._source, [one], one.row) for one in self._places]

    def close(self) -> None:
        """No more of them will be asked for soon."""
        self._source.close()


# Fewer frames are not worth to be compared with one another, if runs are not long on average; and
# more runs not to be probed alone.
_ALIKE_MIN, _LONG_BYTES, _FEW_RUNS = 16, 4096, 4


class Layout(NamedTuple):
    """Frames of one size that begin with the same bytes, up to their bodies. Positions are those in
    the first one.
    """

    size: int
    body_at: int
    body_bytes: int
    tail_at: int
    # What follows the body, if that is the same in all of them, readable, and no compression.
    tail: bytes | None


def _layout(data: bytes, starts: Sequence[int]) -> Layout | None:
    """`starts` has the end of the last frame, too. Compares all at once: a slice with a step has
    one byte of each frame.
    """
    if not isinstance(starts, range):
        return None
    count, first, end, size = len(starts) - 1, starts[0], starts[-1], starts.step
    body_at = _body_at(data, first, size)
    if body_at is None:
        return None
    body_bytes, body_at = varint.decode(data, body_at + 1)
    tail_at = body_at + body_bytes
    if tail_at > first + size or not _is_same(data, range(first, body_at), end, size, count):
        return None
    if tail_at < first + size and _FRAME in data[tail_at:end:size]:
        return None  # would be taken for a frame
    tail = data[tail_at : first + size]
    is_same = _is_same(data, range(tail_at, first + size), end, size, count)
    is_shared = is_same and _is_plain_tail(tail)
    return Layout(size, body_at, body_bytes, tail_at, tail if is_shared else None)


@functools.lru_cache(maxsize=256)
def _is_plain_tail(tail: bytes) -> bool:
    """A message with this after its body can be read, and its body is as it was sent."""
    try:
        message = Message.FromString(tail)
    except DecodeError:
        return False
    # An empty body is not written: one that is there would be the last, which counts.
    return message.ByteSize() == len(tail) and not message.body and not message.compression


# How many bodies are taken out at a time.
_AT_ONCE = 64


@functools.lru_cache(maxsize=1024)
def _unpacker(before: int, body_bytes: int, behind: int, count: int) -> struct.Struct:
    return struct.Struct(f"{before}x{body_bytes}s{behind}x" * count)


def _unpack_bodies(
    data: bytes, layout: Layout, starts: Sequence[int], start: int, end: int
) -> list[bytes]:
    """The bodies of the frames [start, end)."""
    before = layout.body_at - starts[0]
    shape = before, layout.body_bytes, layout.size - before - layout.body_bytes
    found: list[bytes] = []
    for row in range(start, end, _AT_ONCE):
        found += _unpacker(*shape, min(_AT_ONCE, end - row)).unpack_from(data, starts[row])
    return found


def _is_same(data: bytes, positions: range, end: int, size: int, count: int) -> bool:
    """Each of these bytes of the first frame is the same in all frames."""
    return all(data[at:end:size] == data[at : at + 1] * count for at in positions)


def _body_at(data: bytes, frame_at: int, frame_bytes: int) -> int | None:
    """The position of the body field; None if a message does not begin with it."""
    at = frame_at + _head_bytes(frame_bytes)
    return at if at < len(data) and data[at] == _BODY else None


def _head_bytes(frame_bytes: int) -> int:
    """The bytes of a frame before its message."""
    head = 2
    while varint.width(frame_bytes - head) >= head:
        head += 1
    return head


class _Source:
    """A response with runs."""

    def __init__(self, data: bytes, kind: _Kind, places: list[RunPlace], *, is_sound: bool) -> None:
        self.data = data
        self._kind = kind
        self._places = places
        # Protobuf reads all of it.
        self._is_sound = is_sound
        self._is_plain: bool | None = None
        # By the rows of their first messages.
        self._layouts: dict[int, Layout | None] = {}
        self._bodies: dict[int, list[bytes]] = {}

    def layout(self, place: RunPlace) -> Layout | None:
        if place.row not in self._layouts:
            self._layouts[place.row] = _layout(self.data, place.starts)
        return self._layouts[place.row]

    def bodies(self, spans: Iterable[tuple[RunPlace, int, int]]) -> list[bytes]:
        """Of a response that is plain. What protobuf has found is kept until it is closed."""
        found: list[bytes] = []
        for place, start, end in spans:
            layout = self.layout(place)
            if layout is not None and layout.tail is not None:
                found += _unpack_bodies(self.data, layout, place.starts, start, end)
                continue
            if place.row not in self._bodies:
                self._find_bodies()
            found += self._bodies[place.row][start:end]
        return found

    def close(self) -> None:
        self._bodies = {}

    @property
    def is_plain(self) -> bool:
        if self._is_plain is None:
            # The bodies will be asked for.
            self._is_plain = self._is_sound and self._find_bodies()
        return self._is_plain

    def _find_bodies(self) -> bool:
        """Those of runs whose messages are not alike. Returns False if one is compressed."""
        others = [one for one in self._places if not self._is_alike(one)]
        if len(others) <= _FEW_RUNS:
            found = [self._probe(1, place.starts[0], place.starts[-1], [place]) for place in others]
        else:
            start = self._kind.head(self.data)
            found = [self._probe(self._kind.depth, start, len(self.data), self._places)]
        return all(found)

    def _is_alike(self, place: RunPlace) -> bool:
        """The messages of the run differ in their bodies only."""
        layout = self.layout(place)
        return layout is not None and layout.tail is not None

    def _probe(self, depth: int, start: int, end: int, places: Sequence[RunPlace]) -> bool:
        """Finds the bodies of these runs, which are all messages between `start` and `end`. Returns
        False if one is compressed, or has a field that this client does not know.
        """
        try:
            probe = _probe_class(depth).FromString(memoryview(self.data)[start:end])
        except DecodeError:
            return False
        for _ in range(depth):
            probe = probe.inner
        if any(probe.compression):
            return False
        # In one list, they are those of the messages in their order if there are as many, and each
        # message has one.
        count = sum(one.messages for one in places)
        is_each = len(probe.body) == count and all(map(self._have_bodies, places))
        row = 0
        for place in places:
            if is_each:
                self._bodies[place.row] = probe.body[row : row + place.messages]
            else:
                frames = Run.FromString(self.data[place.starts[0] : place.starts[-1]])
                self._bodies[place.row] = [one.body for one in frames.messages]
            row += place.messages
        return True

    def _have_bodies(self, place: RunPlace) -> bool:
        """Each message of the run begins with its body."""
        data, starts = self.data, place.starts
        if isinstance(starts, range):
            body_at = _body_at(data, starts[0], starts.step)
            return body_at is not None and _is_same(
                data, range(body_at, body_at + 1), starts[-1], starts.step, place.messages
            )
        try:
            # The length of a message has mostly one byte or two.
            tags = [
                data[
                    at + (2 if to - at < 0x82 else 3 if to - at < 0x4003 else _head_bytes(to - at))
                ]
                for at, to in itertools.pairwise(starts)
            ]
        except IndexError:
            return False  # the last message is empty
        return tags.count(_BODY) == len(tags)


class _Kind(NamedTuple):
    """A response that has runs: how protobuf names them, and where they stand in its bytes."""

    message: type[Any]
    runs: Callable[[Any], Sequence[Any]]
    # The start of the fields among which the runs are.
    head: Callable[[bytes], int]
    # How deep the messages are in there.
    depth: int


_SUBSCRIBED = _Kind(
    SubscribeResponse,
    lambda response: response.delivery.runs,
    lambda data: varint.decode_length(data, 1)[1],
    2,
)
_PULLED = _Kind(PullResponse, lambda response: response.runs, lambda _: 0, 2)
_RECEIVED = _Kind(
    ReceiveResponse, lambda response: [one.run for one in response.runs], lambda _: 0, 3
)


def parse_subscribe_response(data: bytes) -> tuple[SubscribeResponse, Runs]:
    """Raises Internal if more is broken than single messages."""
    return _parse_runs(_SUBSCRIBED, data)


def parse_pull_response(data: bytes) -> tuple[PullResponse, Runs]:
    """As `parse_subscribe_response`."""
    return _parse_runs(_PULLED, data)


def parse_receive_response(data: bytes) -> list[tuple[ReceivedRun, Runs]]:
    """As `parse_subscribe_response`. Each run by itself: they are of several queues."""
    response, runs = _parse_runs(_RECEIVED, data)
    full = [one for one in response.runs if one.run.frame_sizes]
    return list(zip(full, runs.each(), strict=True))


def _parse_runs(kind: _Kind, data: bytes) -> tuple[Any, Runs]:
    is_sound = True
    try:
        response = kind.message.FromString(data)
    except DecodeError:
        is_sound = False
    try:
        if not is_sound:
            response = _raw_class(kind.message.DESCRIPTOR.name).FromString(data)
        places: list[RunPlace] = []
        if runs := kind.runs(response):
            bounds = _runs(data, _head_end(data, kind.head(data)))
            # Short runs among long ones are looked at as well: a delivery may end within a batch.
            alike_min = 1 if len(data) > _LONG_BYTES * len(runs) else _ALIKE_MIN
            row = 0
            for run, start, end in zip(runs, bounds[::2], bounds[1::2], strict=True):
                if count := len(run.frame_sizes):
                    starts = None
                    if count >= alike_min:
                        starts = _even_starts(data, kind, start, end, count)
                    places.append(_place(data, run, row, starts, end))
                    row += count
    except IndexError:
        raise unreadable("it ends in the middle of a field") from None
    except (DecodeError, ValueError) as error:
        raise unreadable(error) from None
    return response, Runs(_Source(data, kind, places, is_sound=is_sound), places, 0)


def _even_starts(
    data: bytes, kind: _Kind, start: int, end: int, count: int
) -> Sequence[int] | None:
    """The frames of a run, if they are of one size. The broker writes the sizes right
    before the frames.
    """
    first = _head_end(data, start)
    if kind is _RECEIVED:
        first = _head_end(data, varint.decode_length(data, first + 1)[1])
    sizes = data[first - 4 * count : first]
    size = int.from_bytes(sizes[:4], "little")
    if not size or sizes != sizes[:4] * count or first + size * count != end:
        return None
    return range(first, end + 1, size)


def _place(data: bytes, run: Run, row: int, starts: Sequence[int] | None, end: int) -> RunPlace:
    """Of a run that ends there: its frames are the last that it has. Raises Internal if they are
    not where their sizes say.
    """
    if starts is None:
        sizes = run.frame_sizes[:]
        first = end - sum(sizes)
        if first < 0 or data[first] != _FRAME:
            raise unreadable("the frames of a run are not as long as their sizes say")
        starts = list(itertools.accumulate(sizes, initial=first))
    return RunPlace(row, run.queue_offset, run.stored_at_ms, starts, run.log_offset - starts[0])


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
def _probe_class(depth: int) -> Any:
    """Finds the bodies of all messages of a response in one list, and how they are compressed in
    another: fields that are declared as one embedded message are merged. With a depth of 2:

        message Probe0 { repeated bytes body = 1; repeated int32 compression = 7; }
        message Probe1 { Probe0 inner = 15; }
        message Probe2 { Probe1 inner = 15; }
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="probe.proto", package="mq.client")
    file.message_type.add(
        name="Probe0",
        field=[
            field(name="body", number=1, label=field.LABEL_REPEATED, type=field.TYPE_BYTES),
            field(name="compression", number=7, label=field.LABEL_REPEATED, type=field.TYPE_INT32),
        ],
    )
    for at in range(1, depth + 1):
        inner = field(name="inner", number=15, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE)
        inner.type_name = f".mq.client.Probe{at - 1}"
        file.message_type.add(name=f"Probe{at}", field=[inner])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mq.client.Probe{depth}"))


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
                name = message_id(queue.broker_set, runs.log_offset(row))
                self._pass_over(queue, runs.queue_offset(row), name, body)
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
