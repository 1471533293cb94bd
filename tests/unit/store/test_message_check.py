"""A message that is stored can be read, and its hashes are those of its tag and keys: what is
accepted is what a naive check lets in, message by message, by each way of checking.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import IllegalRequest, MalformedBatch
from mq.hashing import text_hash
from mq.names import is_legal_tag
from mq.store import message_check
from mq.store.batch import accept
from mq.store.message_check import KEYS_MAX, text_hashes
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message, RawBatch
from tests.support import naive_wire
from tests.support.naive_wire import field, fixed, prepared, prepared_of
from tests.support.wire_messages import anything

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT = 4 << 20
WAYS = ["opened", "merged"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way in which messages that are not alike are checked; it depends on their number."""
    few = 0 if request.param == "merged" else 1 << 30
    monkeypatch.setattr(message_check, "_OPENED_MAX", few)
    return str(request.param)


def parsed(messages: Sequence[bytes]) -> list[Message] | None:
    """None: at least one is no Message."""
    try:
        return [Message.FromString(one) for one in messages]
    except DecodeError:
        return None


def right_columns(messages: Sequence[Message]) -> dict[str, bytes]:
    keys = [naive_wire.text_hash(key) for message in messages for key in message.keys]
    return {
        "tag_hashes": fixed((naive_wire.text_hash(one.tag) for one in messages), 8),
        "key_hashes": fixed(keys, 8),
        "key_counts": fixed((len(one.keys) for one in messages), 4) if keys else b"",
    }


def is_right(data: bytes) -> bool:
    """Whether a batch is to be accepted that is prepared and whose sizes are right."""
    raw = RawBatch.FromString(data)
    messages = parsed(raw.messages)
    if messages is None or not all(is_legal_tag(one.tag) for one in messages):
        return False
    expected = right_columns(messages)
    is_without_keys = not any(one.keys for one in messages) and not any(raw.key_counts)
    return (
        raw.tag_hashes == expected["tag_hashes"]
        and raw.key_hashes == expected["key_hashes"]
        and (raw.key_counts == expected["key_counts"] or is_without_keys)
    )


def is_accepted(data: bytes) -> bool:
    try:
        batch = accept(data, LIMIT)
    except (MalformedBatch, IllegalRequest):
        return False
    assert batch.data == data
    return True


# Every message that protobuf reads, and no other.


@pytest.mark.parametrize("few", [0, 1 << 30], ids=WAYS)
@given(contents=st.lists(anything, min_size=1, max_size=6))
def test_a_batch_is_accepted_exactly_if_protobuf_reads_its_messages(
    few: int, contents: list[bytes]
) -> None:
    messages = parsed(contents)
    data = prepared(contents, **(right_columns(messages) if messages is not None else {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_check, "_OPENED_MAX", few)
        assert is_accepted(data) == is_right(data)
        for one in contents:
            alone = prepared([one], **right_columns(parsed([one]) or [Message()]))
            assert is_accepted(alone) == is_right(alone)


UNREADABLE = {
    "no field": b"\xff",
    "field number 0": b"\x02\x01a",
    "a field that is cut": b"\x0a\x05abc",
    "a tag that is not UTF-8": field(2, b"\xff\xfe"),
    "a key that is not UTF-8": field(3, b"ok") + field(3, b"\xc3"),
    "an ordering key that is not UTF-8": field(5, b"\x80"),
    "a property name that is not UTF-8": field(4, field(1, b"\xff") + field(2, b"v")),
    "a property value that is not UTF-8": field(4, field(1, b"n") + field(2, b"\xed\xa0\x80")),
    "an origin that is not UTF-8": field(8, field(1, b"\xff")),
    "a number without an end": b"\x30" + b"\x80" * 10 + b"\x01",
    "a group that does not end": b"\x53\x08\x01",
    "an end without a group": b"\x54",
    "wire type 6": b"\x0e\x01",
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("what", UNREADABLE)
def test_a_message_that_cannot_be_read_is_refused_by_its_place(what: str) -> None:
    good = [Message(body=b"%d" % at * 3, tag="t").SerializeToString() for at in range(9)]
    messages = [*good[:6], UNREADABLE[what], *good[6:]]
    assert parsed([UNREADABLE[what]]) is None
    hashes = [naive_wire.text_hash("t")] * 6 + [0] + [naive_wire.text_hash("t")] * 3
    with pytest.raises(MalformedBatch, match="message 7 of 10 of the batch is no Message"):
        accept(prepared(messages, tag_hashes=fixed(hashes, 8)), LIMIT)
    with pytest.raises(MalformedBatch, match="message 1 of 1 of"):
        accept(prepared([UNREADABLE[what]]), LIMIT)


# A message that is alike but for its body and numbers is known by the first one.


ALIKE = [
    Message(body=b"12345678", tag="paid", keys=["order-1", "x"], born_at_ms=1_795_000_000_000),
    Message(body=b"1", properties={"region": "EU"}, ordering_key="customer-3", priority=3),
    Message(tag="tag", keys=["k"], compression=COMPRESSION_LZ4),
    Message(body=bytes(300), tag="t" * 30, born_at_ms=-1),
    Message(body=b"a", tag="ä"),
]


@pytest.mark.parametrize("message", ALIKE, ids=range(len(ALIKE)))
def test_each_byte_of_an_alike_message_is_checked_as_if_it_were_alone(message: Message) -> None:
    data = prepared_of([message] * 3)
    assert is_accepted(data)
    region = len(data) - 3 * naive_frame_bytes(message)
    # Without the byte that ends the header.
    for at in range(region + 1, len(data)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF, data[at] ^ 0x80, data[at] ^ 1, 0x20, 0x7C):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            expected = frames_are_whole(changed, data) and is_right(changed)
            assert is_accepted(changed) == expected, f"byte {at - region} = {value}"


def naive_frame_bytes(message: Message) -> int:
    return len(naive_wire.frame(message.SerializeToString()))


def frames_are_whole(changed: bytes, data: bytes) -> bool:
    """Whether the frames still have the sizes that the header says."""
    try:
        sizes = [len(naive_wire.frame(one)) for one in RawBatch.FromString(changed).messages]
    except DecodeError:
        return False
    expected = [len(naive_wire.frame(one)) for one in RawBatch.FromString(data).messages]
    ends_alike = RawBatch.FromString(changed).frame_sizes == fixed(expected, 4)
    region = b"".join(map(naive_wire.frame, RawBatch.FromString(changed).messages))
    return sizes == expected and ends_alike and changed.endswith(region)


def test_bodies_and_times_of_messages_that_are_alike_are_free() -> None:
    rng = random.Random(1)
    messages = [
        Message(body=rng.randbytes(40), tag="t", keys=["k"], born_at_ms=rng.randrange(1 << 40))
        for _ in range(200)
    ]
    for one in messages:
        one.born_at_ms |= 1 << 40
    opened: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_check, "frames_match", lambda *_: opened.append(True))
        assert is_accepted(prepared_of(messages))
    assert not opened


# Hashes.


def varied() -> list[Message]:
    """Messages of several sizes; some without a tag, some with keys."""
    tags = ["", "paid", "shipped", "a-tag-of-more-than-eight-bytes", "ä" * 9, "tag-of-8"]
    return [
        Message(body=bytes(at % 7 * 40), tag=tags[at % 6], keys=[f"k{at}", "", "k"][: at % 4])
        for at in range(60)
    ]


@pytest.mark.usefixtures("way")
def test_the_right_hashes_are_accepted_and_each_wrong_one_is_refused() -> None:
    messages = varied()
    right = right_columns(messages)
    serialised = [one.SerializeToString() for one in messages]
    assert is_accepted(prepared(serialised, **right))
    for name, width in (("tag_hashes", 8), ("key_hashes", 8)):
        for at in range(0, len(right[name]), width):
            wrong = bytearray(right[name])
            wrong[at] ^= 1
            with pytest.raises(MalformedBatch, match=name):
                accept(prepared(serialised, **right | {name: bytes(wrong)}), LIMIT)


@pytest.mark.usefixtures("way")
def test_keys_that_are_counted_for_another_message_are_refused() -> None:
    messages = varied()
    right = right_columns(messages)
    serialised = [one.SerializeToString() for one in messages]
    counts = [len(one.keys) for one in messages]
    for at in range(1, len(counts)):
        if counts[at]:
            moved = [*counts]
            moved[at] -= 1
            moved[at - 1] += 1
            with pytest.raises(MalformedBatch, match="key_counts"):
                accept(prepared(serialised, **right | {"key_counts": fixed(moved, 4)}), LIMIT)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("columns", [{"tag_hashes": [0, 0, 0]}, {"key_hashes": []}])
def test_columns_that_leave_out_what_messages_have_are_refused(columns: dict[str, Any]) -> None:
    messages = [Message(body=b"%d" % at * at, tag="t", keys=["k"]) for at in range(3)]
    wrong = right_columns(messages) | {name: fixed(one, 8) for name, one in columns.items()}
    if not wrong["key_hashes"]:
        wrong["key_counts"] = b""
    refused(prepared([one.SerializeToString() for one in messages], **wrong))
    same = [messages[1].SerializeToString()] * 3
    refused(prepared(same, **wrong))


def refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch, match="hashes"):
        accept(data, LIMIT)


def odd_messages() -> Iterator[tuple[str, bytes]]:
    body, tag, key = field(1, b"body"), field(2, b"paid"), field(3, b"k")
    yield "the tag before the body", tag + body + key
    yield "a key before the tag", body + key + tag
    yield "two tags", body + field(2, b"first") + tag + key
    yield "two bodies", field(1, b"other") + body + tag + key
    yield (
        "a body whose length has more bytes than it needs",
        b"\x0a\x84\x80\x80\x00body" + tag + key,
    )
    yield "a tag whose length has more bytes than it needs", body + b"\x12\x84\x00paid" + key
    yield "an unknown field before", b"\x7a\x03\x12\x01x" + body + tag + key
    yield "an unknown group", b"\xa3\x06\x12\x01x\xa4\x06" + body + tag + key
    yield "a field of another wire type", b"\x10\x05" + body + tag + key
    yield "many keys", body + tag + key * 30


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("what", "odd"), list(odd_messages()))
def test_fields_in_another_order_have_the_hashes_that_protobuf_finds(what: str, odd: bytes) -> None:
    usual = Message(body=b"b", tag="usual", keys=["x"]).SerializeToString()
    for contents in ([odd], [odd, odd], [usual, odd, usual], [odd, usual, b""]):
        messages = [Message.FromString(one) for one in contents]
        right = right_columns(messages)
        assert is_accepted(prepared(contents, **right)), what
        for fake in ("x", "first", "k", ""):
            hashes = [naive_wire.text_hash(fake if one == odd else "usual") for one in contents]
            refused(prepared(contents, **right | {"tag_hashes": fixed(hashes, 8)}))


def test_a_tag_that_another_message_left_out_is_not_counted_for_it() -> None:
    """Two tags in one message and none in another are as many as one in each."""
    twice = field(1, b"b") + field(2, b"a") + field(2, b"c")
    none = field(1, b"body")
    hashes = [naive_wire.text_hash("a"), naive_wire.text_hash("c")] * 40
    refused(prepared([twice, none] * 40, tag_hashes=fixed(hashes, 8)))
    keys = fixed([naive_wire.text_hash("k")] * 80, 8)
    both = field(3, b"k") * 2
    columns = {"key_hashes": keys, "key_counts": fixed([1] * 80, 4)}
    refused(prepared([both, none] * 40, **columns))


@pytest.mark.parametrize("tag", ["two words", " a", "a ", "a||b", "a|b", "*", "a\tb", "a\u2003b"])
def test_a_tag_that_no_filter_can_ask_for_is_refused(tag: str) -> None:
    bad, good = Message(body=b"xy", tag=tag), Message(body=b"x", tag="good")
    for messages in ([bad], [bad] * 3, [good, bad], [good, bad] * 40, [bad, *varied()]):
        plain = naive_wire.plain(messages)
        for data in (prepared_of(messages), plain):
            with pytest.raises(IllegalRequest, match="is not legal: no filter could ask for it"):
                accept(data, LIMIT)


def test_more_keys_than_a_batch_may_have_are_refused_before_they_are_hashed() -> None:
    message = Message(keys=["k"] * (KEYS_MAX // 2)).SerializeToString()
    hashes = {"key_hashes": fixed([naive_wire.text_hash("k")], 8) * KEYS_MAX}
    counts = fixed([KEYS_MAX // 2] * 2, 4)
    assert is_accepted(prepared([message] * 2, **hashes, key_counts=counts))
    more = Message(keys=["k"] * (KEYS_MAX // 2 + 1)).SerializeToString()
    hashes = {"key_hashes": bytes(8 * (KEYS_MAX + 1))}
    counts = fixed([KEYS_MAX // 2, KEYS_MAX // 2 + 1], 4)
    with pytest.raises(IllegalRequest, match="65537 keys: at most 65536"):
        accept(prepared([message, more], **hashes, key_counts=counts), LIMIT)


def test_batches_that_need_parsing_message_by_message_are_counted_first(way: str) -> None:
    odd = field(3, b"k") + field(2, b"tag")
    contents = [odd, field(1, b"b") + odd] * 3
    data = prepared(contents, **right_columns([Message.FromString(one) for one in contents]))
    counted: list[bytes | memoryview] = []
    accept(data, LIMIT, counted.append)
    assert counted == ([data] if way == "merged" else [])


@given(st.lists(st.text(max_size=4), max_size=20))
def test_many_hashes_are_those_of_each_text(texts: list[str]) -> None:
    assert text_hashes(texts).tolist() == [text_hash(text) for text in texts]
    assert text_hashes(texts * 3).tolist() == [text_hash(text) for text in texts * 3]
