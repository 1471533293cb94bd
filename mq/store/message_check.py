"""Whether the messages of a prepared batch can be read, and whether its columns of hashes are those
of its messages. A consumer that uses generated code fails at an offset whose message its protobuf
refuses, so such a batch is not stored.

There are three ways, and the cheapest that fits is taken. None runs Python once a message, see
docs/adr/0019-messages-are-checked-at-the-door.md:

    alike   frames of one size whose bodies and numbers differ, and nothing else: the first message
            is opened, and the others are compared with it, eight bytes of each at a time
    merged  protobuf parses all messages into one, which it refuses if it refuses one of them; the
            tags and keys are found by a walk to where producers write them, and as many as
            protobuf counted have to be found
    opened  each message is an object of protobuf, and maps in C take tag and keys out of it: for
            few messages, and for fields in an unusual order
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from mq import names
from mq.errors import IllegalRequest, MalformedBatch
from mq.hashing import NO_TAG, text_hash
from mq.store.frame_check import FRAME_TAG, frames_match, prefix_width, prefix_widths
from mq.store.varints import read_varint
from mq.wire.v1.merged_pb2 import MergedBatch
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from mq.wire.walking import Flags, Numbers, Walker, Words

try:
    # For texts of one block it takes two thirds of the time of OpenSSL's.
    from _sha256 import sha256  # type: ignore[import-not-found]
except ImportError:
    from hashlib import sha256

if TYPE_CHECKING:
    from mq.store.batch import Batch

Hashes: TypeAlias = npt.NDArray[np.uint64]

# Tags of the fields of a Message: number << 3 | wire type.
_BODY, _TAG, _KEY = 0x0A, 0x12, 0x1A
# Up to so many messages are opened: the calls of numpy for a walk take longer.
_OPENED_MAX = 48
# A walk makes a step for each key of a message, and compares tags that are the same by words.
_KEYS_WALKED_MAX, _TAG_GROUPS_MAX, _TAG_BYTES_MAX = 8, 8, 64
# Keys of a batch: the hash of each is computed, which takes the loop 50 ms for that many.
KEYS_MAX = 65_536
# How many bytes of a frame, without its body, are compared with those of the first one.
_ALIKE_BYTES_MAX = 192

_tag_of, _keys_of = operator.attrgetter("tag"), operator.attrgetter("keys")
_digest_of = operator.methodcaller("digest")


def check_messages(
    batch: Batch,
    smallest: int,
    largest: int,
    check_opened: Callable[[bytes | memoryview], None] | None = None,
) -> None:
    """Raises MalformedBatch; IllegalRequest when a tag is not legal, or keys are too many.
    `smallest` and `largest` are sizes of frames; the columns have the right number of elements.
    `check_opened` raises if the messages are too many to make an object of each.
    """
    if len(batch.key_hashes) > KEYS_MAX:
        raise IllegalRequest(
            f"a batch with {len(batch.key_hashes)} keys: at most {KEYS_MAX} are allowed, send them "
            "in several batches"
        )
    if smallest == largest and _are_alike(batch, largest):
        return
    if not frames_match(batch.data, batch.frame_starts, batch.frame_sizes, smallest, largest):
        raise MalformedBatch("frame_sizes are not the sizes of the messages that follow")
    if batch.message_count > _OPENED_MAX:
        if _are_right_merged(batch, largest):
            return
        if check_opened is not None:
            check_opened(batch.data)
    _check_opened(batch)


def check_tags(tags: Collection[str]) -> None:
    """Raises IllegalRequest unless a consumer can ask for each of them."""
    if not all(map(names.is_legal_tag, tags)):
        names.check_tag(next(tag for tag in tags if not names.is_legal_tag(tag)))


def text_hashes(texts: Sequence[str]) -> Hashes:
    """`text_hash` of each; Python runs once for all of them."""
    distinct = set(texts)
    if 2 * len(distinct) < len(texts):
        hashes = dict(zip(distinct, text_hashes(list(distinct)).tolist(), strict=True))
        return np.fromiter(map(hashes.__getitem__, texts), np.uint64, len(texts))
    digests = b"".join(map(_digest_of, map(sha256, map(str.encode, texts))))
    made = np.frombuffer(digests, "<u8")[::4]
    return np.where(np.fromiter(map(bool, texts), np.bool_, len(texts)), made, NO_TAG)


# -- alike ----------------------------------------------------------------------------------------


class _Word(NamedTuple):
    """Eight bytes of a frame, and which bits of them are the same in all frames."""

    at: int
    value: int
    mask: int


def _are_alike(batch: Batch, size: int) -> bool:
    """False: at least one differs from the first in more than its body and its numbers."""
    first = bytes(batch.data[batch.region_start : batch.region_start + size])
    message_at = 1 + prefix_width(size)
    count = batch.message_count
    if len(first) < max(size, 8) or batch.region_start + count * size != len(batch.data):
        return False
    length, start = read_varint(first, 1)
    if first[0] != FRAME_TAG or start != message_at or length != size - message_at:
        return False
    try:
        message = Message.FromString(first[message_at:])
    except DecodeError:
        return False
    layout = _layout(first, message_at)
    if layout is None:
        return False
    for at, value, mask in layout:
        column = np.ndarray((count,), "<u8", batch.data, batch.region_start + at, (size,))
        if ((column & mask) != value).any():
            return False
    _check_alike(batch, message.tag, message.keys)
    return True


def _check_alike(batch: Batch, tag: str, keys: Sequence[str]) -> None:
    """The columns, of messages that all have this tag and these keys."""
    names.check_tag(tag)
    if (batch.tag_hashes != text_hash(tag)).any():
        raise _wrong_tags()
    if len(batch.key_hashes) != len(keys) * batch.message_count:
        raise _wrong_keys()
    if keys:
        hashes = np.fromiter(map(text_hash, keys), np.uint64, len(keys))
        if (batch.key_counts != len(keys)).any():
            raise _wrong_keys()
        if (batch.key_hashes.reshape(-1, len(keys)) != hashes).any():
            raise _wrong_keys()


def _layout(frame: bytes, message_at: int) -> list[_Word] | None:
    """All words that have something in them that frames have in common, given a frame whose message
    protobuf has read: everything but bodies, and of numbers how many bytes they have. None when it
    is unusual or very much.
    """
    words: list[_Word] = []
    masks, masks_at, at = bytearray(b"\xff" * message_at), 0, message_at
    while at < len(frame):
        wire_type, width = frame[at] & 7, _number_width(frame, at + 1)
        if frame[at] > 0x7F or not width or len(masks) > _ALIKE_BYTES_MAX:
            return None
        masks.append(0xFF)
        at += 1
        if wire_type == 0:
            masks += b"\x80" * width
            at += width
        elif wire_type == 2 and width <= 4:
            length, content_at = read_varint(frame, at)
            masks += b"\xff" * width
            at = content_at + length
            if frame[content_at - width - 1] != _BODY:
                masks += b"\xff" * min(length, _ALIKE_BYTES_MAX)
            else:
                words += _words(frame, masks_at, masks)
                masks, masks_at = bytearray(), at
        else:
            return None
    return words + _words(frame, masks_at, masks) if len(masks) <= _ALIKE_BYTES_MAX else None


def _words(frame: bytes, masks_at: int, masks: bytes | bytearray) -> list[_Word]:
    """Masks of bytes as words that stand in the frame."""
    words = []
    for start in range(0, len(masks), 8):
        at = min(masks_at + start, len(frame) - 8)
        before = masks_at + start - at
        mask = int.from_bytes(masks[start : start + 8], "little") << 8 * before
        words.append(_Word(at, int.from_bytes(frame[at : at + 8], "little") & mask, mask))
    return words


def _number_width(data: bytes, at: int) -> int:
    """Number of bytes of the varint there; 0 if it has more than nine, of which not all bits may be
    set.
    """
    word = int.from_bytes(data[at : at + 9], "little")
    stop = ~word & 0x80_8080_8080_8080_8080
    return (stop & -stop).bit_length() // 8


# -- merged ---------------------------------------------------------------------------------------


def _are_right_merged(batch: Batch, largest: int) -> bool:
    """False: fields stand in an order in which the walk does not find them all."""
    try:
        merged = MergedBatch.FromString(_region(batch)).messages
    except DecodeError:
        raise _unreadable(batch) from None
    tags, keys = merged.tags, merged.keys
    if len(keys) != len(batch.key_hashes):
        raise _wrong_keys()
    if tags or keys:
        return _are_right_columns(batch, largest, tags, keys)
    if batch.tag_hashes.any():
        raise _wrong_tags()
    return True


def _are_right_columns(
    batch: Batch, largest: int, tags: Sequence[str], keys: Sequence[str]
) -> bool:
    """Checks the columns against these tags and keys. False if the walk does not find all."""
    walker = Walker(memoryview(batch.data))
    at = batch.frame_starts + 1
    at += prefix_widths(batch.frame_sizes, largest)
    # A frame is followed by the next one or by nothing: behind the end of a message no field of it
    # is found.
    bodies = _step(walker, at, _BODY)
    found = _step(walker, bodies.ends, _TAG)
    if not bodies.are_plain or not found.are_plain or int(found.has_it.sum()) != len(tags):
        return False
    if keys:
        if not _keys_follow(walker, found.ends, batch.key_counts):
            return False
        if (text_hashes(list(keys)) != batch.key_hashes).any():
            raise _wrong_keys()
    claimed = batch.tag_hashes
    if len(tags) < batch.message_count:
        if claimed[~found.has_it].any():
            raise _wrong_tags()
        claimed = claimed[found.has_it]
    if tags and not _are_right_tags(batch.data, walker, found, claimed):
        _check_tags(list(tags), claimed)
    return True


class _Step(NamedTuple):
    """A field of each message that has it; where it has none, the field ends where it starts."""

    has_it: Flags
    starts: Numbers
    ends: Numbers
    # All lengths are at most seven bytes wide, and have been read.
    are_plain: bool


def _step(walker: Walker, at: Numbers, tag: int) -> _Step:
    tags, starts, sizes = walker.heads(at)
    has_it = tags == tag
    if not has_it.all():
        starts, sizes = np.where(has_it, starts, at), np.where(has_it, sizes, 0)
    are_plain = not (sizes < 0).any()
    return _Step(has_it, starts, starts + sizes if are_plain else at, are_plain)


def _keys_follow(walker: Walker, at: Numbers, key_counts: npt.NDArray[np.uint32]) -> bool:
    """Whether at least so many keys of each message stand there, one behind the other."""
    most = int(key_counts.max())
    if most > _KEYS_WALKED_MAX:
        return False
    at = at.copy()
    for nth in range(most):
        rows = np.flatnonzero(key_counts > nth)
        step = _step(walker, at[rows], _KEY)
        if not step.are_plain or not step.has_it.all():
            return False
        at[rows] = step.ends
    return True


def _are_right_tags(
    data: bytes | memoryview, walker: Walker, found: _Step, claimed: Hashes
) -> bool:
    """Tags are the same text exactly where they claim the same hash, and it is that of the text.
    False: they are too many or too long for that.
    """
    starts, ends = found.starts, found.ends
    if not found.has_it.all():
        starts, ends = starts[found.has_it], ends[found.has_it]
    texts = _Texts(walker, starts, ends)
    is_done = np.zeros(len(starts), np.bool_)
    for _ in range(_TAG_GROUPS_MAX):
        first = int(is_done.argmin())
        text = bytes(data[starts[first] : ends[first]])
        if len(text) > _TAG_BYTES_MAX:
            return False
        tag = text.decode()
        names.check_tag(tag)
        are_same = texts.are(text)
        if not np.array_equal(are_same, claimed == text_hash(tag)):
            raise _wrong_tags()
        is_done |= are_same
        if is_done.all():
            return True
    return False


class _Texts:
    """Slices of a buffer that are compared with texts, by words from their ends on: before a slice
    there is a header, behind it there may be nothing.
    """

    def __init__(self, walker: Walker, starts: Numbers, ends: Numbers) -> None:
        self._walker = walker
        self._ends = ends
        self._sizes = ends - starts
        self._words: list[Words] = []

    def are(self, text: bytes) -> Flags:
        same: Flags = self._sizes == len(text)
        for nth, behind in enumerate(range(len(text), 0, -8)):
            part = text[max(0, behind - 8) : behind]
            if nth == len(self._words):
                self._words.append(self._walker.words_before(self._ends - 8 * nth))
            words = self._words[nth] >> np.uint64(64 - 8 * len(part))
            same &= words == np.uint64(int.from_bytes(part, "little"))
        return same


# -- opened ---------------------------------------------------------------------------------------


def _check_opened(batch: Batch) -> None:
    try:
        messages = WireBatch.FromString(_region(batch)).messages
    except DecodeError:
        raise _unreadable(batch) from None
    keys = list(map(_keys_of, messages))
    key_counts = np.fromiter(map(len, keys), np.int64, len(keys))
    if len(batch.key_counts) and not np.array_equal(key_counts, batch.key_counts):
        raise _wrong_keys()
    if not np.array_equal(text_hashes(list(chain.from_iterable(keys))), batch.key_hashes):
        raise _wrong_keys()
    _check_tags(list(map(_tag_of, messages)), batch.tag_hashes)


def _check_tags(tags: Sequence[str], claimed: Hashes) -> None:
    check_tags(set(tags))
    if (text_hashes(tags) != claimed).any():
        raise _wrong_tags()


def _region(batch: Batch) -> bytes:
    # A memoryview, which protobuf reads without a copy; its types know of bytes only.
    return cast("bytes", memoryview(batch.data)[batch.region_start :])


def _unreadable(batch: Batch) -> MalformedBatch:
    """Names the first message that protobuf refuses. It is found by halves: they may be many."""
    first, behind = 0, batch.message_count - 1
    ends = [*batch.frame_starts[1:].tolist(), len(batch.data)]
    start = batch.region_start
    while first < behind:
        middle = (first + behind) // 2
        try:
            MergedBatch.FromString(bytes(batch.data[start : ends[middle]]))
            first, start = middle + 1, ends[middle]
        except DecodeError:
            behind = middle
    reason = "protobuf cannot read it"
    try:
        WireBatch.FromString(bytes(batch.data[start : ends[first]]))
    except DecodeError as error:
        reason = str(error)
    return MalformedBatch(
        f"message {first + 1} of {batch.message_count} of the batch is no Message of the protocol: "
        f"{reason}"
    )


def _wrong_tags() -> MalformedBatch:
    return MalformedBatch("tag_hashes are not the hashes of the tags of the messages")


def _wrong_keys() -> MalformedBatch:
    return MalformedBatch(
        "key_hashes and key_counts are not the hashes and numbers of the keys of the messages"
    )
