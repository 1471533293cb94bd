"""The bytes on the wire are the bytes on disk: clients and the broker read them by two schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.names import is_legal_tag
from mq.store.batch import Batch, accept, decode_payload, encode_payload, prepare
from mq.wire.v1 import log_pb2, message_pb2
from mq.wire.v1.log_pb2 import MessagesEntry
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, COMPRESSION_NONE, Message, RawBatch
from mq.wire.v1.message_pb2 import Batch as WireBatch
from tests.support.naive_wire import field, fixed, frame

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 4 << 20

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
uint64s = st.integers(0, 2**64 - 1)
uint32s = st.integers(0, 2**32 - 1)
messages = st.builds(
    Message,
    body=st.binary(max_size=200),
    tag=texts.filter(is_legal_tag),
    keys=st.lists(texts, max_size=3),
    properties=st.dictionaries(texts, texts, max_size=3),
    ordering_key=texts,
    born_at_ms=st.integers(-(2**63), 2**63 - 1),
    compression=st.sampled_from([COMPRESSION_NONE, COMPRESSION_LZ4]),
)
message_lists = st.lists(messages, min_size=1, max_size=8)
# As a producer may fill it, whether the columns fit the messages or not.
wire_batches = st.builds(
    WireBatch,
    topic=texts,
    queue_id=uint32s,
    tag_hashes=st.lists(uint64s, max_size=4),
    frame_sizes=st.lists(uint32s, max_size=4),
    key_hashes=st.lists(uint64s, max_size=4),
    key_counts=st.lists(uint32s, max_size=4),
    messages=st.lists(messages, max_size=4),
)


def plain(sent: list[Message], queue_id: int = 0) -> bytes:
    return WireBatch(topic="orders", queue_id=queue_id, messages=sent).SerializeToString()


def stored(sent: list[Message], queue_id: int = 0) -> Batch:
    return accept(plain(sent, queue_id), LIMIT)


def parsed(frames: bytes) -> list[Message]:
    """As a consumer reads them: a batch of nothing but messages."""
    batch = WireBatch.FromString(frames)
    assert batch == WireBatch(messages=batch.messages)
    return list(batch.messages)


def slices(batch: Batch) -> list[bytes]:
    starts, sizes = batch.frame_starts.tolist(), batch.frame_sizes.tolist()
    return [bytes(batch.data[a : a + size]) for a, size in zip(starts, sizes, strict=True)]


def fields_of(message: str) -> dict[str, int]:
    """Numbers of the fields by name."""
    for file in (message_pb2.DESCRIPTOR, log_pb2.DESCRIPTOR):
        if message in file.message_types_by_name:
            fields = file.message_types_by_name[message].fields_by_name
            return {name: fields[name].number for name in fields}
    raise KeyError(message)


# Two schemas, one format.


@given(wire_batches)
def test_the_broker_reads_what_a_producer_wrote(sent: WireBatch) -> None:
    raw = RawBatch.FromString(sent.SerializeToString())
    assert (raw.topic, raw.queue_id) == (sent.topic, sent.queue_id)
    assert raw.tag_hashes == fixed(sent.tag_hashes, 8)
    assert raw.frame_sizes == fixed(sent.frame_sizes, 4)
    assert raw.key_hashes == fixed(sent.key_hashes, 8)
    assert raw.key_counts == fixed(sent.key_counts, 4)
    assert list(map(Message.FromString, raw.messages)) == list(sent.messages)


@given(wire_batches)
def test_a_client_reads_what_the_broker_wrote(sent: WireBatch) -> None:
    data = sent.SerializeToString()
    assert RawBatch.FromString(data).SerializeToString() == data
    raw = RawBatch(
        topic=sent.topic,
        queue_id=sent.queue_id,
        tag_hashes=fixed(sent.tag_hashes, 8),
        frame_sizes=fixed(sent.frame_sizes, 4),
        key_hashes=fixed(sent.key_hashes, 8),
        key_counts=fixed(sent.key_counts, 4),
        messages=[message.SerializeToString() for message in sent.messages],
    )
    assert WireBatch.FromString(raw.SerializeToString()) == sent


@given(wire_batches)
def test_the_messages_are_the_end_of_a_serialised_batch(sent: WireBatch) -> None:
    data = sent.SerializeToString()
    front = WireBatch()
    front.CopyFrom(sent)
    front.ClearField("messages")
    region = b"".join(frame(message) for message in RawBatch.FromString(data).messages)
    assert data == front.SerializeToString() + region


def test_messages_keep_the_highest_field_number_with_a_tag_of_one_byte() -> None:
    for name in ("Batch", "RawBatch"):
        numbers = fields_of(name)
        assert max(numbers, key=numbers.__getitem__) == "messages"
        assert numbers["messages"] == 15


def test_both_schemas_of_a_batch_have_the_same_fields() -> None:
    assert fields_of("Batch") == fields_of("RawBatch")


# Cutting and joining without decoding.


@given(message_lists, st.data())
def test_frames_cut_out_of_a_stored_batch_parse_as_messages(
    sent: list[Message], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(sent)))
    last = data.draw(st.integers(first, len(sent)))
    assert parsed(b"".join(slices(stored(sent))[first:last])) == sent[first:last]


@given(st.lists(message_lists, min_size=2, max_size=4))
def test_frames_of_several_batches_joined_together_parse_as_messages(
    sent: list[list[Message]],
) -> None:
    batches = [stored(one) for one in sent]
    regions = [bytes(batch.data[batch.region_start :]) for batch in batches]
    assert parsed(b"".join(regions)) == [message for one in sent for message in one]
    lasts = [slices(batch)[-1] for batch in reversed(batches)]
    assert parsed(b"".join(lasts)) == [one[-1] for one in reversed(sent)]


@given(message_lists)
def test_a_stored_batch_is_still_the_batch_that_was_sent(sent: list[Message]) -> None:
    batch = stored(sent, queue_id=7)
    view = WireBatch.FromString(bytes(batch.data))
    assert (view.topic, view.queue_id, list(view.messages)) == ("orders", 7, sent)
    assert list(view.frame_sizes) == batch.frame_sizes.tolist()
    assert list(view.tag_hashes) == batch.tag_hashes.tolist()


# Entries of the log.


@given(st.lists(message_lists, max_size=4))
def test_the_payload_of_an_entry_is_a_messages_entry_and_decodes_to_its_batches(
    sent: list[list[Message]],
) -> None:
    batches = [stored(one, queue_id) for queue_id, one in enumerate(sent)]
    payload = b"".join(encode_payload(batches))
    entry = MessagesEntry.FromString(payload)
    assert [list(batch.messages) for batch in entry.batches] == sent
    assert [batch.queue_id for batch in entry.batches] == list(range(len(sent)))
    decoded = decode_payload(memoryview(payload), 1 << 40).batches
    assert len(decoded) == len(batches)
    for (again, log_offset), batch in zip(decoded, batches, strict=True):
        assert (again.topic, again.queue_id) == (batch.topic, batch.queue_id)
        assert bytes(again.data) == batch.data
        assert again.region_start == batch.region_start
        for name in ("frame_sizes", "frame_starts", "tag_hashes", "key_hashes", "key_counts"):
            assert getattr(again, name).tolist() == getattr(batch, name).tolist()
        place = log_offset - (1 << 40)
        assert payload[place : place + len(batch.data)] == batch.data


def test_a_payload_of_large_batches_is_a_messages_entry() -> None:
    sent = [[Message(body=bytes(size))] for size in (1, 100, 20_000, 3_000_000)]
    payload = b"".join(encode_payload([stored(one) for one in sent]))
    assert payload == b"".join(field(1, prepare(plain(one))) for one in sent)
    assert [list(one.messages) for one in MessagesEntry.FromString(payload).batches] == sent
    decoded = decode_payload(memoryview(payload), 0).batches
    assert [batch.message_count for batch, _ in decoded] == [1] * len(sent)


# The schema itself.

# Stored and sent for ever: a number may be added, never changed or used again.
FIELDS = {
    "Message": "body=1 tag=2 keys=3 properties=4 ordering_key=5 born_at_ms=6 compression=7",
    "Batch": "topic=1 queue_id=2 tag_hashes=5 frame_sizes=6 key_hashes=7 key_counts=8 messages=15",
    "MessagesEntry": "batches=1",
    "TopicQueues": "topic=1 queue_ids=2 starts=3 ends=4",
    "Checkpoint": "topics=1 broker_state=2",
}


@pytest.mark.parametrize("name", FIELDS)
def test_field_numbers_of_what_is_stored_never_change(name: str) -> None:
    assert {f"{key}={number}" for key, number in fields_of(name).items()} >= set(
        FIELDS[name].split()
    )


def test_the_generated_code_is_current() -> None:
    tool = ROOT / "tools" / "generate_proto.py"
    done = subprocess.run(
        [sys.executable, tool, "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
