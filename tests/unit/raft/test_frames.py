"""Frames as bytes, handshakes as decisions: whatever needs no socket."""

from __future__ import annotations

import ast
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.raft.frames import (
    _PIECE_BYTES,
    _STAGING_BYTES,
    BODY_BYTES_MAX,
    GREETING_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PREFIX,
    Frame,
    FrameReader,
    Malformed,
    OpensTls,
    SendQueue,
    encode,
)
from mq.raft.handshake import Expected, Past, Restored, greeting, objection, refusal
from mq.wire.v1.raft_pb2 import Hello, RaftFrame, Refusal
from tests.support.raft_peers import answer, append, node, parse, stream

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[3]
STAGING = _STAGING_BYTES


def feed(reader: FrameReader, data: bytes, sizes: Iterable[int] = ()) -> list[Frame]:
    """As a socket would: at most as many bytes at once as the reader's buffer takes."""
    frames, start, cuts = [], 0, iter(sizes)
    while start < len(data):
        buffer = reader.buffer()
        assert len(buffer) > 0
        chunk = data[start : start + min(len(buffer), next(cuts, len(buffer)))]
        buffer[: len(chunk)] = chunk
        frames += list(reader.received(len(chunk)))
        start += len(chunk)
    return frames


def established() -> FrameReader:
    reader = FrameReader()
    reader.allow_all()
    return reader


def plain(frames: Iterable[Frame]) -> list[tuple[RaftFrame, bytes]]:
    return [(frame.message, bytes(frame.body)) for frame in frames]


# -- what is on the wire ---------------------------------------------------------------------------


def test_a_frame_is_two_lengths_a_message_and_a_body() -> None:
    frame = append(3, b"entries")
    message = frame.message.SerializeToString()
    expected = struct.pack("<II", len(message), 7) + message + b"entries"
    assert stream(frame) == expected
    assert frame.size == len(expected)


def test_a_body_is_not_copied_into_its_frame() -> None:
    body = memoryview(bytearray(100))
    assert encode(append(1, body))[1] is body


# -- reading ---------------------------------------------------------------------------------------

bodies = st.sampled_from([0, 1, 7, 100, STAGING - 40, STAGING, 3 * STAGING]).map(
    lambda size: bytes(index * 31 % 256 for index in range(size))
)
frame_lists = st.lists(st.builds(append, st.integers(0, 2**63), bodies), max_size=6)


@given(frame_lists, st.lists(st.integers(1, 3 * STAGING), max_size=40), st.booleans())
def test_every_split_of_a_stream_gives_the_same_frames(
    frames: list[Frame], sizes: list[int], are_tiny: bool
) -> None:
    sizes = [1 + size % 9 for size in sizes] if are_tiny else sizes
    assert plain(feed(established(), stream(*frames), sizes)) == plain(frames)


def test_byte_by_byte_is_a_split_too() -> None:
    frames = [append(1), append(2, b"x" * 300), answer(3)]
    data = stream(*frames)
    assert plain(feed(established(), data, [1] * len(data))) == plain(frames)


def test_a_body_stays_as_it_was_when_more_is_received() -> None:
    reader = established()
    kept = feed(reader, stream(append(1, b"small"), append(2, b"L" * (2 * STAGING))))
    feed(reader, stream(append(3, b"other"), append(4, b"M" * (2 * STAGING))))
    assert [bytes(frame.body) for frame in kept] == [b"small", b"L" * (2 * STAGING)]
    for frame in kept:
        assert isinstance(frame.body, memoryview)
        assert frame.body.readonly


def test_a_large_body_is_received_into_one_buffer_of_its_size() -> None:
    reader = established()
    data = stream(append(1, b"x" * (10 * STAGING)))
    buffer = reader.buffer()
    buffer[:] = data[: len(buffer)]
    assert list(reader.received(len(buffer))) == []
    assert len(reader.buffer()) == len(data) - len(buffer)


@pytest.mark.parametrize(
    ("message_bytes", "body_bytes", "reason"),
    [
        (MESSAGE_BYTES_MAX + 1, 0, "a message of more than"),
        (0xFFFFFFFF, 0, "a message of more than"),
        (10, BODY_BYTES_MAX + 1, "a body of more than"),
        (10, 0xFFFFFFFF, "a body of more than"),
        (0, 0, "without content"),
        (0, 100, "without content"),
    ],
)
def test_illegal_lengths_are_refused_before_anything_is_received(
    message_bytes: int, body_bytes: int, reason: str
) -> None:
    with pytest.raises(Malformed, match=reason):
        feed(established(), PREFIX.pack(message_bytes, body_bytes))


def test_the_largest_legal_lengths_are_taken() -> None:
    reader = established()
    assert feed(reader, PREFIX.pack(MESSAGE_BYTES_MAX, BODY_BYTES_MAX)) == []
    assert len(reader.buffer()) == MESSAGE_BYTES_MAX + BODY_BYTES_MAX


def test_before_the_handshake_frames_are_small_and_have_no_body() -> None:
    assert feed(FrameReader(), PREFIX.pack(GREETING_BYTES_MAX, 0)) == []
    with pytest.raises(Malformed, match="a message of more than 4096 bytes"):
        feed(FrameReader(), PREFIX.pack(GREETING_BYTES_MAX + 1, 0))
    with pytest.raises(Malformed, match="a body"):
        feed(FrameReader(), stream(append(1, b"x")))


def test_limits_change_between_two_frames_that_arrive_together() -> None:
    reader = FrameReader()
    data = stream(answer(1), append(2, b"body"))
    reader.buffer()[: len(data)] = data
    frames = reader.received(len(data))
    assert next(frames).message == answer(1).message
    reader.allow_all()
    assert plain(frames) == plain([append(2, b"body")])


@pytest.mark.parametrize(
    "message", [b"\xff" * 10, b"\x12\x7f", Frame(RaftFrame(term=4)).message.SerializeToString()]
)
def test_a_malformed_or_empty_frame_is_refused(message: bytes) -> None:
    with pytest.raises(Malformed):
        feed(established(), PREFIX.pack(len(message), 0) + message)


def test_tls_is_recognized_where_none_is_spoken() -> None:
    with pytest.raises(OpensTls):
        feed(FrameReader(), bytes.fromhex("1603010200010001fc0303"))


@given(st.binary(max_size=4 * GREETING_BYTES_MAX), st.booleans())
def test_any_bytes_are_frames_an_unfinished_one_or_malformed(
    data: bytes, is_established: bool
) -> None:
    reader = established() if is_established else FrameReader()
    try:
        frames = feed(reader, data)
    except Malformed:
        return
    end = 0
    for _ in frames:
        end += PREFIX.size + sum(PREFIX.unpack_from(data, end))
    # The rest is less than a frame.
    rest = data[end:]
    assert len(rest) < PREFIX.size or len(rest) < PREFIX.size + sum(PREFIX.unpack_from(rest))
    assert len(reader.buffer()) > 0


@given(frame_lists, st.data())
def test_a_flipped_bit_never_raises_anything_but_malformed(
    frames: list[Frame], choices: st.DataObject
) -> None:
    data = bytearray(stream(append(1, b"x"), *frames))
    at = choices.draw(st.integers(0, min(len(data), 200) - 1))
    data[at] ^= 1 << choices.draw(st.integers(0, 7))
    try:
        feed(established(), bytes(data))
    except Malformed:
        return


# -- writing ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12).flatmap(
        lambda kinds: st.tuples(*(st.sampled_from([0, 5, 16_384, 300_000]) for _ in kinds))
    )
)
def test_pieces_are_the_frames_bytes_in_their_order(sizes: tuple[int, ...]) -> None:
    frames = [append(index, bytes([index]) * size) for index, size in enumerate(sizes)]
    queue = SendQueue()
    for frame in frames:
        queue.push(frame)
    assert queue.byte_count == len(stream(*frames))
    pieces = []
    while queue.byte_count:
        pieces.append(bytes(queue.pop()))
    assert all(0 < len(piece) <= _PIECE_BYTES for piece in pieces)
    assert b"".join(pieces) == stream(*frames)


def test_small_frames_leave_together_and_large_bodies_are_not_copied() -> None:
    queue = SendQueue()
    for index in range(100):
        queue.push(answer(index))
    assert len(parse(bytes(queue.pop()))) == 100
    body = bytearray(1 << 20)
    queue.push(append(1, memoryview(body)))
    queue.pop()
    piece = queue.pop()
    assert isinstance(piece, memoryview)
    assert piece.obj is body


# -- the handshake ---------------------------------------------------------------------------------

US = node("b")


def expected(**changes: object) -> Expected:
    return Expected(US, {"a", "c"}, None, 0)._replace(**changes)  # type: ignore[arg-type]


def hello(**changes: object) -> Hello:
    message = greeting(node("a"), "b", 0).message.hello
    for field, value in changes.items():
        setattr(message, field, value)
    return message


def test_a_hello_names_the_sender_and_the_receiver() -> None:
    assert greeting(node("a"), "b", 5).message.hello == Hello(
        protocol_version=1, cluster="mq", broker_set="set-0", node_id="a", peer_id="b", birth_crc=5
    )


def test_a_member_is_accepted_whichever_side_dialed() -> None:
    assert objection(hello(), expected()) is None
    assert objection(hello(node_id="c"), expected(dialed="c")) is None


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (0, 9), (9, 0), (9, 9)])
def test_genesis_checksums_that_are_equal_or_unknown_are_taken(ours: int, theirs: int) -> None:
    assert objection(hello(birth_crc=theirs), expected(genesis_crc=ours)) is None


@pytest.mark.parametrize(
    ("changes", "known", "words"),
    [
        ({"protocol_version": 2}, {}, ["version 1", "version 2", "same release"]),
        ({"cluster": "other"}, {}, ["cluster mq", "to other", "correct"]),
        ({"broker_set": "set-9"}, {}, ["set set-0", "to set-9", "correct"]),
        ({"node_id": "b"}, {}, ["two nodes are called b", "of its own"]),
        ({"peer_id": "z"}, {}, ["wants to talk to z", "this is node b", "correct the address"]),
        ({"node_id": "x"}, {}, ["node x is not a member", "knows a, c", "add it"]),
        ({}, {"peers": ()}, ["node a is not a member", "knows no other"]),
        ({"node_id": "c"}, {}, ["node c dialed node b", "smaller id dials, which is b"]),
        ({"node_id": "a"}, {"dialed": "c"}, ["dialed c", "a answered", "correct"]),
        (
            {"birth_crc": 1},
            {"genesis_crc": 2},
            ["started with other members", "00000001", "00000002"],
        ),
    ],
)
def test_a_refusal_names_both_sides_and_what_to_do(
    changes: dict[str, object], known: dict[str, object], words: list[str]
) -> None:
    reason = objection(hello(**changes), expected(**known))
    assert reason is not None
    for word in words:
        assert word in reason


ONE, OTHER, LATER = Restored(50, 1), Restored(50, 2), Restored(90, 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_taken"),
    [
        (Past(), Past(), True),
        (Past(100), Past(7), True),
        (Past(60, (ONE,)), Past(55, (ONE,)), True),
        # A node that copies the log has not come to that entry yet.
        (Past(60, (ONE,)), Past(0), True),
        (Past(60, (ONE,)), Past(49), True),
        (Past(99, (ONE, LATER)), Past(89, (ONE,)), True),
        # Restored next to old nodes, or twice, or from another backup.
        (Past(50, (ONE,)), Past(50), False),
        (Past(50, (ONE,)), Past(100), False),
        (Past(50, (ONE,)), Past(50, (OTHER,)), False),
        (Past(99, (ONE, LATER)), Past(90, (ONE,)), False),
        (Past(99, (ONE, LATER)), Past(60, (OTHER,)), False),
        (Past(99, (LATER,)), Past(60, (ONE,)), False),
    ],
)
def test_a_restored_log_is_distinguished_from_others(
    ours: Past, theirs: Past, *, is_taken: bool
) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        said = greeting(node("a"), "b", 0, past=other).message.hello
        reason = objection(said, expected(past=one))
        assert (reason is None) == is_taken
        assert reason is None or "different sets" in reason


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_a_reason_fits_and_cannot_forge_a_log_line(cluster: str, name: str) -> None:
    reason = objection(hello(cluster=cluster + "!", node_id=name), expected())
    assert reason is not None
    assert len(stream(refusal(reason))) <= GREETING_BYTES_MAX
    assert reason.isprintable()


def test_a_refusal_of_any_length_fits_before_a_handshake() -> None:
    frame = refusal("\U0001f512" * 5000)
    assert len(stream(frame)) <= GREETING_BYTES_MAX
    assert frame.message.refusal != Refusal()


# -- nothing is pickled ----------------------------------------------------------------------------

UNSAFE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "copyreg"}
SOURCES = sorted((ROOT / "mq").rglob("*.py"))


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(item, ast.Import):
            names |= {alias.name.split(".")[0] for alias in item.names}
        elif isinstance(item, ast.ImportFrom):
            names.add((item.module or "").split(".")[0])
            names |= {alias.name for alias in item.names}
        elif isinstance(item, ast.Attribute):
            # As in pysyncobj.pickle: a module that another one has imported.
            names.add(item.attr)
    return names


def test_our_code_unpickles_nothing() -> None:
    assert len(SOURCES) > 30
    assert {str(path): imports(path) & UNSAFE for path in SOURCES if imports(path) & UNSAFE} == {}
