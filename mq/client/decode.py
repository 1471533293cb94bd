"""Messages out of the responses of a broker.

A message that cannot be read, because an older version has stored it or its body cannot be
decompressed, is logged, counted and passed over; its neighbours come through. Message objects are
made one at a time, when they are taken. Knows nothing of groups, and has no state but the count.
"""

from __future__ import annotations

import functools
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import lz4.frame
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as WireMessage

from mq.client.messages import Origin, QueueRef, ReceivedMessage
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

log = logging.getLogger(__name__)

R = TypeVar("R", bound=WireMessage)


class Unreadable(NamedTuple):
    """In the place of a message that cannot be read."""

    reason: str


class Frames(NamedTuple):
    """A Run of the protocol with its messages parsed one by one, as far as that is possible."""

    queue_offset: int
    log_offset: int
    stored_at_ms: int
    frame_sizes: Sequence[int]
    messages: Sequence[Message | Unreadable]

    def behind(self, queue_offset: int) -> Frames:
        """Without the messages before this one; may be empty."""
        count = queue_offset - self.queue_offset
        if count <= 0:
            return self
        return Frames(
            queue_offset,
            self.log_offset + sum(self.frame_sizes[:count]),
            self.stored_at_ms,
            self.frame_sizes[count:],
            self.messages[count:],
        )


class Decoded(NamedTuple):
    """One stored message; `message` is None if it is filtered or unreadable."""

    queue_offset: int
    frame_bytes: int
    message: ReceivedMessage | None


def parse_subscribe_response(data: bytes) -> tuple[SubscribeResponse, list[Frames]]:
    """Raises Internal if more is broken than single messages."""
    return _parse_runs(SubscribeResponse, data, lambda response: response.delivery.runs)


def parse_pull_response(data: bytes) -> tuple[PullResponse, list[Frames]]:
    """As `parse_subscribe_response`."""
    return _parse_runs(PullResponse, data, lambda response: response.runs)


def parse_receive_response(data: bytes) -> list[tuple[ReceivedRun, Frames]]:
    """As `parse_subscribe_response`."""
    response, frames = _parse_runs(
        ReceiveResponse, data, lambda response: [one.run for one in response.runs]
    )
    return list(zip(response.runs, frames, strict=True))


def _parse_runs(
    kind: type[R], data: bytes, runs_of: Callable[[Any], Iterable[Any]]
) -> tuple[R, list[Frames]]:
    """The response and its runs, of which the messages of a broken one are missing in it."""
    try:
        response = kind.FromString(data)
    except DecodeError:
        return _parse_broken(kind, data, runs_of)
    return response, [_frames(run) for run in runs_of(response)]


def _parse_broken(
    kind: type[R], data: bytes, runs_of: Callable[[Any], Iterable[Any]]
) -> tuple[R, list[Frames]]:
    try:
        raw = _raw_class(kind.DESCRIPTOR.name).FromString(data)
        frames = [
            _frames(run)._replace(messages=[_parse(frame) for frame in run.messages])
            for run in runs_of(raw)
        ]
        for run in runs_of(raw):
            del run.messages[:]
        return kind.FromString(raw.SerializeToString()), frames
    except DecodeError as error:
        raise unreadable(error) from None


def unreadable(error: object) -> Internal:
    return Internal(f"what the broker sends cannot be read: {error}")


def _frames(run: Run) -> Frames:
    return Frames(run.queue_offset, run.log_offset, run.stored_at_ms, run.frame_sizes, run.messages)


def _parse(frame: bytes) -> Message | Unreadable:
    try:
        return Message.FromString(frame)
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


class Decoder:
    """Makes the messages of one consumer. `wanted_tags` has the tags of each topic that is filtered
    by tags: the broker compares hashes only, so that tags are compared here again.
    """

    def __init__(self, wanted_tags: Mapping[str, frozenset[str]] | None = None) -> None:
        self._wanted_tags = wanted_tags or {}
        self.unreadable_messages = 0

    def messages(
        self, queue: QueueRef, runs: Sequence[Frames], broker_set: str
    ) -> Iterator[Decoded]:
        """Every stored message in order, each decoded when it is asked for."""
        topic, queue_id, _ = queue
        wanted = self._wanted_tags.get(topic)
        # In other topics an origin is an invention of the producer.
        has_origins = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, GIVE_UP_TOPIC))
        for run in runs:
            queue_offset, log_offset = run.queue_offset, run.log_offset
            for message, frame_bytes in zip(run.messages, run.frame_sizes, strict=False):
                received = None
                name = message_id(broker_set, log_offset)
                if isinstance(message, Unreadable):
                    self._pass_over(queue, queue_offset, name, message)
                elif wanted is None or message.tag in wanted:
                    body: bytes | Unreadable = message.body
                    if message.compression:
                        body = decompressed(message.body, message.compression)
                    if isinstance(body, Unreadable):
                        self._pass_over(queue, queue_offset, name, body)
                    else:
                        # Opening an empty map or list costs as much as all the rest.
                        keys, properties = message.keys, message.properties
                        received = ReceivedMessage(
                            topic,
                            queue_id,
                            queue_offset,
                            name,
                            run.stored_at_ms,
                            message.born_at_ms,
                            body,
                            message.tag,
                            tuple(keys) if keys else (),
                            dict(properties) if properties else {},
                            message.ordering_key,
                        )
                        if has_origins:
                            _add_origin(received, message)
                yield Decoded(queue_offset, frame_bytes, received)
                queue_offset += 1
                log_offset += frame_bytes

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


def _add_origin(received: ReceivedMessage, message: Message) -> None:
    if message.HasField("origin"):
        origin = message.origin
        received.origin = Origin(
            origin.topic,
            origin.queue_id,
            origin.queue_offset,
            origin.message_id,
            origin.stored_at_ms,
            origin.reason,
        )
        received.attempt = origin.attempts + 1
        received.stored_topic, received.topic = received.topic, origin.topic


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


_RUN = 0x7A


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


def _head_end(data: bytes) -> int:
    """The position of the first run."""
    at = 0
    while at < len(data) and data[at] != _RUN:
        wire_type = data[at] & 7
        value, at = varint.decode(data, at + 1)
        if wire_type == 2:
            at += value
        elif wire_type != 0:
            raise DecodeError(f"a field of wire type {wire_type} is none of a PullResponse")
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
