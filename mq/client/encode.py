"""Messages as bytes: frames when they are sent, prepared batches when they leave.

    frame    = 0x7A, varint length, Message           field 15 of Batch
    batch    = place (topic, queue, producer, sequence) | columns | frame | frame | ...
    request  = request id, ack | 0x7A, varint length, batch | ...      field 15 of PublishRequest

The place is apart, so that a batch goes to another queue without being encoded again. A message is
encoded when it is sent, because the caller may change it afterwards; a body of bytes cannot change,
so that messages that are only a body get their frames when the batch leaves, all at once. The
broker checks all of it; see proto/mq/v1/message.proto for what it expects.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import lz4.frame

from mq.client.messages import Message
from mq.errors import IllegalDelay, IllegalRequest, MessageTooLarge
from mq.hashing import text_hash
from mq.levels import DELAY_MS_MAX, LEVELS_MS
from mq.limits import BESIDE_BODY_BYTES_MAX
from mq.names import check_tag
from mq.wire import varint

# Of a body, before it is compressed.
MESSAGE_BYTES_MAX = 4 << 20
PROPERTIES_BYTES_MAX = 16 << 10
PROPERTIES_MAX = 128
PRIORITIES_MAX = 10

# The tags of length-delimited fields: of Message ...
_BODY, _TAG, _KEY, _PROPERTY, _ORDERING_KEY = 0x0A, 0x12, 0x1A, 0x22, 0x2A
_COMPRESSED = b"\x38\x01"
_PRIORITY = b"\x48"
# ... and of the messages in a batch.
_MESSAGE = 0x7A

_TIME_MS_MAX = 1 << 62

# A message that is ready to join a batch: its frame, the hash of its tag, the hashes of its keys,
# the hash that chooses its queue (None: any), the field of its delay (empty: none), its priority.
# A plain tuple: one is made for each message.
Encoded = tuple[bytes, int, Sequence[int], int | None, bytes, int]


def encode_message(
    message: Message | bytes | str, born_at_ms: int, compress_above_bytes: int
) -> Encoded:
    """Raises MessageTooLarge, IllegalRequest and IllegalDelay, as the broker would; TypeError names
    the field that has a value of a wrong type.

    By hand: protobuf takes three times as long, and this limits the speed of a producer in Python.
    """
    try:
        if isinstance(message, Message):
            body, tag, ordering_key = message.body, message.tag, message.ordering_key
            fields, key_hashes = _fields(message)
            delay, priority = delay_field(message), message.priority
        else:
            body, tag, ordering_key = _body_bytes(message), "", ""
            fields, key_hashes, delay, priority = b"", (), b"", 0
        if type(body) is not bytes:
            body = _body_bytes(body)
        tag_hash = text_hash(tag) if tag else 0
        ordering_hash = text_hash(ordering_key) if ordering_key else None
    except UnicodeEncodeError as error:
        raise IllegalRequest(f"a text of the message is not valid Unicode: {error}") from None
    except (AttributeError, TypeError):
        if isinstance(message, Message):
            _check_types(message)
        raise
    end = _born(born_at_ms)
    if len(body) > compress_above_bytes:
        body, compression = _compressed(body)
        end += compression
    prefix = _prefix(_BODY, len(body)) if body else b""
    length = len(prefix) + len(body) + len(fields) + len(end)
    if length > MESSAGE_BYTES_MAX:
        _check_size(body, length)
    frame = b"".join((_prefix(_MESSAGE, length), prefix, body, fields, end))
    return frame, tag_hash, key_hashes, ordering_hash, delay, priority


def _fields(message: Message) -> tuple[bytes, Sequence[int]]:
    """Tag, keys, properties and ordering key, and the hashes of the keys."""
    fields = _tag_field(message.tag) if message.tag else b""
    key_hashes: Sequence[int] = ()
    if message.keys:
        keys = (message.keys,) if isinstance(message.keys, str) else message.keys
        key_hashes = [text_hash(key) for key in keys]
        for key in keys:
            fields += _text_field(_KEY, key)
    if message.properties:
        fields += _property_fields(message.properties)
    if message.ordering_key:
        fields += _text_field(_ORDERING_KEY, message.ordering_key)
    if message.priority:
        fields += _priority_field(message.priority)
    return fields, key_hashes


def _priority_field(priority: int) -> bytes:
    if not 0 <= priority < PRIORITIES_MAX:
        raise IllegalRequest(
            f"priority {priority}: 0, the lowest, to {PRIORITIES_MAX - 1}, as the topic has them"
        )
    return _PRIORITY + varint.encode(priority)


def _body_bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"the body of a message is bytes or str, not {type(body).__name__}")


def _check_types(message: Message) -> None:
    """TypeError: names the first field that is not as `Message` declares it. Looked at only when
    encoding has failed.
    """
    texts: list[tuple[str, object]] = [
        ("tag", message.tag),
        ("ordering_key", message.ordering_key),
    ]
    if not isinstance(message.keys, Iterable):
        raise _wrong_type("keys", message.keys, "a list of str")
    texts += ((f"keys[{at}]", key) for at, key in enumerate(message.keys))
    if not isinstance(message.properties, Mapping):
        raise _wrong_type("properties", message.properties, "a dict of str to str")
    for name, value in message.properties.items():
        texts += (("a name in properties", name), (f"properties[{name!r}]", value))
    for field, text in texts:
        if not isinstance(text, str):
            raise _wrong_type(field, text, "a str")
    if not isinstance(message.priority, int):
        raise _wrong_type("priority", message.priority, "an int")


def _wrong_type(field: str, value: object, wanted: str) -> TypeError:
    advice = f"; write {str(value)!r}" if isinstance(value, int | float) else ""
    return TypeError(f"{field} of a message is {wanted}, not {type(value).__name__}{advice}")


def _property_fields(properties: Mapping[str, str]) -> bytes:
    """Entries of a map are messages with a key (field 1) and a value (field 2)."""
    parts: list[bytes] = []
    for name, value in properties.items():
        name_field, value_bytes = _name_field(0x0A, name), value.encode()
        prefix = _prefix(0x12, len(value_bytes))
        length = len(name_field) + len(prefix) + len(value_bytes)
        parts += (_prefix(_PROPERTY, length), name_field, prefix, value_bytes)
    fields = b"".join(parts)
    if len(properties) > PROPERTIES_MAX or len(fields) > PROPERTIES_BYTES_MAX:
        _check_properties(properties)
    return fields


def _check_properties(properties: Mapping[str, str]) -> None:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if len(properties) > PROPERTIES_MAX or size > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(
            f"a message with {len(properties)} properties of {size} bytes: at most "
            f"{PROPERTIES_MAX} of {PROPERTIES_BYTES_MAX} bytes in all are allowed"
        )


def _check_size(body: bytes, length: int) -> None:
    if len(body) > MESSAGE_BYTES_MAX:
        raise _too_large(len(body))
    if length > MESSAGE_BYTES_MAX + BESIDE_BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"a message of {length} bytes: at most {MESSAGE_BYTES_MAX} are allowed for its body "
            f"and {BESIDE_BODY_BYTES_MAX} for its tag, keys, properties and times"
        )


def _compressed(body: bytes) -> tuple[bytes, bytes]:
    """The body as it is sent, and the field that says how."""
    # The body that a consumer gets has the same limit as the stored one.
    if len(body) > MESSAGE_BYTES_MAX:
        raise _too_large(len(body))
    smaller = lz4.frame.compress(body)
    return (smaller, _COMPRESSED) if len(smaller) < len(body) else (body, b"")


def _too_large(size: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"a body of {size} bytes: at most {MESSAGE_BYTES_MAX} are allowed; put the content "
        "elsewhere and send where it is"
    )


@functools.lru_cache(maxsize=4096)
def _prefix(tag: int, length: int) -> bytes:
    return bytes((tag,)) + varint.encode(length)


@functools.lru_cache(maxsize=4)
def _born(at_ms: int) -> bytes:
    return b"\x30" + varint.encode(at_ms)


def _text_field(tag: int, text: str) -> bytes:
    data = text.encode()
    return _prefix(tag, len(data)) + data


# For texts of which a program has few.
_name_field = functools.lru_cache(maxsize=1024)(_text_field)


@functools.lru_cache(maxsize=1024)
def _tag_field(tag: str) -> bytes:
    field = _text_field(_TAG, tag)
    check_tag(tag)
    return field


def delay_field(message: Message) -> bytes:
    """The field of a batch that says when its messages are delivered; empty: at once. Messages of
    one batch have the same. IllegalDelay.
    """
    deliver_at_ms, delay_s, level = message.deliver_at_ms, message.delay_s, message.delay_level
    if not (deliver_at_ms or delay_s or level):
        return b""
    return _delay(deliver_at_ms, delay_s, level)


@functools.lru_cache(maxsize=256)
def _delay(deliver_at_ms: int, delay_s: float, level: int) -> bytes:
    if bool(deliver_at_ms) + bool(delay_s) + bool(level) > 1:
        raise IllegalDelay("deliver_at_ms, delay_s and delay_level: say one of them")
    if level and level not in range(1, len(LEVELS_MS) + 1):
        raise IllegalDelay(f"delay level {level}: they are 1 to {len(LEVELS_MS)}")
    # The clock of the broker decides how far ahead a time is.
    if deliver_at_ms and not 0 < deliver_at_ms < _TIME_MS_MAX:
        raise IllegalDelay(f"deliver_at_ms = {deliver_at_ms}: milliseconds since 1970")
    if not 0 <= delay_s * 1_000 <= DELAY_MS_MAX:
        raise IllegalDelay(f"delay_s = {delay_s}: 0 to {DELAY_MS_MAX // 1_000}, which is 40 days")
    if deliver_at_ms:
        return b"\x49" + struct.pack("<q", int(deliver_at_ms))
    # A delay that rounds to nothing is still one.
    delay_ms = LEVELS_MS[level - 1] if level else max(1, round(delay_s * 1_000))
    return b"\x51" + struct.pack("<Q", delay_ms)


class Bodies(NamedTuple):
    """Messages that are only a body, sent in the same millisecond. The bodies are not compressed
    and not above the limit.
    """

    born_at_ms: int
    bodies: Sequence[bytes]


# Messages of a batch that stand together.
Run = Bodies | Sequence[Encoded]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch without its place. `sizes`: of the frames, packed as in the columns."""

    columns: bytes
    sizes: bytes

    @property
    def count(self) -> int:
        return len(self.sizes) // 4


def sole_body(message: object) -> bytes | None:
    """The body of a message that has nothing else; None if it has, or if its body is not bytes."""
    if type(message) is bytes:
        return message
    if type(message) is not Message or type(message.body) is not bytes:
        return None
    has_more = (
        message.tag
        or message.keys
        or message.properties
        or message.ordering_key
        or message.priority
        or message.deliver_at_ms
        or message.delay_s
        or message.delay_level
    )
    return None if has_more else message.body


def columns(messages: Sequence[Encoded], delay: bytes = b"") -> bytes:
    """Everything of a batch of these messages that does not say where it goes."""
    return prepare([messages], delay).columns


def prepare(runs: Iterable[Run], delay: bytes = b"") -> Prepared:
    """Everything of a batch that does not say where it goes: hashes, sizes, keys, the field of its
    delay, frames.
    """
    tag_hashes, sizes, key_counts = [], [], []
    key_hashes: list[int] = []
    frames: list[bytes] = []
    for run in runs:
        if isinstance(run, Bodies):
            count = len(run.bodies)
            sizes.append(_frame_bodies(run, frames))
            tag_hashes.append(bytes(8 * count))
            key_counts.append(bytes(4 * count))
            continue
        count = len(run)
        of_run, tags, keys, *_ = zip(*run, strict=True)
        frames += of_run
        sizes.append(struct.pack(f"<{count}I", *map(len, of_run)))
        tag_hashes.append(struct.pack(f"<{count}Q", *tags))
        key_counts.append(struct.pack(f"<{count}I", *map(len, keys)))
        key_hashes += itertools.chain.from_iterable(keys)
    all_sizes = b"".join(sizes)
    parts = [_prefix(0x2A, 2 * len(all_sizes)), *tag_hashes]
    parts += (_prefix(0x32, len(all_sizes)), all_sizes)
    if key_hashes:
        parts += (
            _prefix(0x3A, 8 * len(key_hashes)),
            struct.pack(f"<{len(key_hashes)}Q", *key_hashes),
            _prefix(0x42, len(all_sizes)),
            *key_counts,
        )
    parts.append(delay)
    parts += frames
    return Prepared(b"".join(parts), all_sizes)


def _frame_bodies(run: Bodies, frames: list[bytes]) -> bytes:
    """Adds the frames, and returns their packed sizes. Bodies of one length have the same bytes
    between them: one join makes all of their frames.
    """
    bodies, end = run.bodies, _born(run.born_at_ms)
    lengths = list(map(len, bodies))
    if lengths.count(lengths[0]) == len(lengths):
        head = _body_head(lengths[0], len(end))
        frames += (head, (end + head).join(bodies), end)
        return struct.pack("<I", len(head) + lengths[0] + len(end)) * len(bodies)
    heads = [_body_head(length, len(end)) for length in lengths]
    frames += itertools.chain.from_iterable(zip(heads, bodies, itertools.repeat(end)))
    sizes = [len(head) + length + len(end) for head, length in zip(heads, lengths, strict=True)]
    return struct.pack(f"<{len(sizes)}I", *sizes)


@functools.lru_cache(maxsize=8192)
def _body_head(length: int, end_bytes: int) -> bytes:
    """The bytes of a frame before its body."""
    prefix = _prefix(_BODY, length) if length else b""
    return _prefix(_MESSAGE, len(prefix) + length + end_bytes) + prefix


def place(topic: str, queue_id: int, producer_id: str, sequence: int) -> bytes:
    """The fields of a batch that stand before its columns."""
    parts = [_text_field(0x0A, topic)]
    if queue_id:
        parts += (b"\x10", varint.encode(queue_id))
    if producer_id:
        parts += (_text_field(0x1A, producer_id), b"\x21", struct.pack("<Q", sequence))
    return b"".join(parts)


def request(request_id: int, ack: int, batches: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A PublishRequest; batches are pairs of place and columns."""
    parts = [b"\x08", varint.encode(request_id)]
    if ack:
        parts += (b"\x10", varint.encode(ack))
    for where, what in batches:
        parts += (b"\x7a", varint.encode(len(where) + len(what)), where, what)
    return b"".join(parts)
