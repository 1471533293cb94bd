"""Streams, windows, and frames that break the rules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mq.http2.frames import ErrorCode
from mq.http2.limits import Limits, Usage
from tests.support import http2_frames as http2
from tests.unit.http2.peer import BLOCK, Peer

WINDOW = 65_535
SMALL = replace(Limits(), stream_window_bytes=1_000, connection_window_bytes=70_000)


def kinds(peer: Peer) -> list[tuple[int, int]]:
    return [(one.kind, one.stream_id) for one in peer.frames()]


# -- the greeting ----------------------------------------------------------------------------------


def test_a_client_is_told_the_limits() -> None:
    peer = Peer()
    settings, window = peer.greeting
    limits = peer.limits
    assert http2.settings_of(settings) == {
        "header_table_size": 0,
        "max_concurrent_streams": limits.streams_max,
        "initial_window_size": limits.stream_window_bytes,
        "max_frame_size": 16_384,
        "max_header_list_size": limits.header_list_bytes_max,
    }
    assert (window.kind, window.stream_id) == (http2.WINDOW_UPDATE, 0)
    assert int.from_bytes(window.payload, "big") == limits.connection_window_bytes - WINDOW


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", http2.PREFACE[:-1] + b"\0", b"\0"])
def test_bytes_other_than_http2_end_the_connection(first: bytes) -> None:
    peer = Peer(settings=b"", acknowledges=False)
    peer.send(first)
    assert peer.goaway().error == ErrorCode.PROTOCOL_ERROR


def test_a_request_may_come_in_single_bytes() -> None:
    peer = Peer(settings=b"", acknowledges=False)
    for byte in http2.PREFACE + http2.settings() + http2.headers(1, BLOCK) + http2.data(1, b"abc"):
        peer.send(bytes([byte]))
    assert peer[1].data == b"abc"


# -- receiving -------------------------------------------------------------------------------------


def test_the_windows_are_refilled_when_the_handler_reads_and_not_before() -> None:
    peer = Peer(SMALL)
    peer.open(1)
    peer.send(http2.data(1, bytes(600)))
    assert peer.frames() == []
    peer[1].credit_owed(400)
    assert peer.frames() == []
    peer[1].credit_owed(200)
    (update,) = peer.frames()
    assert (update.kind, update.stream_id) == (http2.WINDOW_UPDATE, 1)
    assert int.from_bytes(update.payload, "big") == 600


def test_the_window_of_the_connection_is_refilled_by_all_streams() -> None:
    peer = Peer(SMALL)
    for stream_id in range(1, 81, 2):
        peer.open(stream_id)
        peer.send(http2.data(stream_id, bytes(1_000), http2.END_STREAM))
    assert peer.frames() == []
    for stream_id in range(1, 81, 2):
        peer[stream_id].credit_owed()
    (update,) = peer.frames()
    assert (update.kind, update.stream_id) == (http2.WINDOW_UPDATE, 0)
    assert int.from_bytes(update.payload, "big") == 35_000


def test_more_than_the_window_of_a_stream_ends_the_stream() -> None:
    peer = Peer(SMALL)
    peer.open(1)
    peer.send(http2.data(1, bytes(1_001)))
    (reset,) = peer.frames()
    assert (reset.kind, reset.error) == (http2.RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
    assert peer[1].is_cancelled


def test_more_than_the_window_of_the_connection_ends_the_connection() -> None:
    peer = Peer(SMALL)
    for stream_id in range(1, 143, 2):
        peer.open(stream_id)
        peer.send(http2.data(stream_id, bytes(1_000)))
    assert peer.goaway().error == ErrorCode.FLOW_CONTROL_ERROR


def test_a_stream_that_ends_returns_what_it_owes_to_the_connection() -> None:
    peer = Peer(SMALL)
    for stream_id in range(1, 1_001, 2):
        peer.open(stream_id)
        peer.send(http2.data(stream_id, bytes(1_000)) + http2.rst_stream(stream_id))
    assert not peer.has_ended()
    assert {one.kind for one in peer.frames()} == {http2.WINDOW_UPDATE}


def test_padding_costs_window_and_is_given_back_at_once() -> None:
    peer = Peer(SMALL)
    peer.open(1)
    for _ in range(100):
        peer.send(http2.frame(http2.DATA, 0x8, 1, bytes([200]) + b"x" + bytes(200)))
        peer[1].credit_owed()
    assert peer[1].data == b"x" * 100


def test_trailers_end_a_request() -> None:
    peer = Peer()
    peer.open(1)
    peer.send(http2.data(1, b"abc"))
    peer.send(http2.headers(1, http2.header_field("x", "y"), http2.END_HEADERS | http2.END_STREAM))
    assert (peer[1].data, peer[1].has_end) == (b"abc", True)


def test_a_header_block_may_come_in_several_frames() -> None:
    peer = Peer()
    peer.send(http2.headers(1, BLOCK[:10], 0) + http2.continuation(1, BLOCK[10:20]))
    peer.send(http2.continuation(1, BLOCK[20:], http2.END_HEADERS))
    assert 1 in peer.connection.streams


def test_frames_for_a_stream_ended_by_the_server_are_ignored() -> None:
    peer = Peer(SMALL)
    peer.open(1)
    peer[1].send_headers(b"done", is_end=True)
    assert kinds(peer) == [(http2.HEADERS, 1), (http2.RST_STREAM, 1)]
    for _ in range(200):
        peer.send(http2.data(1, bytes(1_000)))
    peer.send(http2.window_update(1, 5) + http2.headers(1, b"", http2.END_HEADERS | 1))
    assert {kind for kind, _ in kinds(peer)} == {http2.WINDOW_UPDATE}
    peer.send(http2.data(1, b"after its end"))
    assert kinds(peer) == [(http2.RST_STREAM, 1)]


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (http2.data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (http2.data(3, b"x"), ErrorCode.PROTOCOL_ERROR),
        (http2.headers(2, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (http2.headers(3, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (http2.continuation(1, b""), ErrorCode.PROTOCOL_ERROR),
        (http2.headers(3, BLOCK, 0) + http2.ping(), ErrorCode.PROTOCOL_ERROR),
        (http2.headers(3, BLOCK, 0) + http2.continuation(5, b""), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(0, 0x7FFFFFFF), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.window_update(9, 1), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.WINDOW_UPDATE, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.PING, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.SETTINGS, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (http2.settings(enable_push=2), ErrorCode.PROTOCOL_ERROR),
        (http2.settings(max_frame_size=1), ErrorCode.PROTOCOL_ERROR),
        (http2.settings(initial_window_size=1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.rst_stream(9), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(5, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.DATA, 0x8, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, 0x24, 3, b"\0\0\0\x03\0"), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_faults_of_a_connection_end_it(sent: bytes, error: ErrorCode) -> None:
    peer = Peer()
    peer.open(1)
    peer.send(sent)
    assert peer.goaway().error == error
    assert peer[1].is_cancelled


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (http2.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(1, 0x7FFFFFFF), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.headers(1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (http2.data(1, b"", http2.END_STREAM) + http2.data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (http2.frame(http2.PRIORITY, 0, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.PRIORITY, 0, 1, b"\0\0\0\x01\0"), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_faults_of_a_stream_end_the_stream_alone(sent: bytes, error: ErrorCode) -> None:
    peer = Peer()
    peer.open(1, 3)
    peer.send(sent)
    (reset,) = peer.frames()
    assert (reset.kind, reset.stream_id, reset.error) == (http2.RST_STREAM, 1, error)
    assert peer[1].is_cancelled
    peer.send(http2.data(3, b"abc"))
    assert peer[3].data == b"abc"


@pytest.mark.parametrize(
    "data", [[http2.data(1, b"ab", http2.END_STREAM)], [http2.data(1, b"ab"), http2.data(1, b"cd")]]
)
def test_data_has_the_length_that_was_announced(data: list[bytes]) -> None:
    peer = Peer()
    peer.open(1, block=http2.call_headers("/s/M", ("content-length", "3")))
    peer.send(b"".join(data))
    (reset,) = peer.frames()
    assert (reset.kind, reset.error) == (http2.RST_STREAM, ErrorCode.PROTOCOL_ERROR)


# -- sending ---------------------------------------------------------------------------------------


def sent_to(peer: Peer, stream_id: int) -> int:
    return sum(
        len(one.payload)
        for one in peer.frames()
        if one.kind == http2.DATA and one.stream_id == stream_id
    )


def test_no_more_is_sent_than_the_windows_allow() -> None:
    peer = Peer(settings=http2.settings(initial_window_size=100))
    peer.open(1)
    peer[1].send_data([bytes(150_000)])
    assert sent_to(peer, 1) == 100
    peer.send(http2.window_update(1, 400))
    assert sent_to(peer, 1) == 400
    peer.send(http2.settings(initial_window_size=1 << 20))
    assert sent_to(peer, 1) == WINDOW - 500, "all that the connection has"
    peer.send(http2.window_update(0, 1 << 20))
    assert sent_to(peer, 1) == 150_000 - WINDOW
    assert not peer[1].queued_bytes


def test_a_window_may_become_negative() -> None:
    peer = Peer()
    peer.open(1)
    peer[1].send_data([bytes(1_000)])
    assert sent_to(peer, 1) == 1_000
    peer.send(http2.settings(initial_window_size=0))
    peer[1].send_data([b"x"])
    peer.send(http2.window_update(1, 1_000))
    assert sent_to(peer, 1) == 0
    peer.send(http2.window_update(1, 1))
    assert sent_to(peer, 1) == 1


def test_trailers_follow_all_data() -> None:
    peer = Peer(settings=http2.settings(initial_window_size=10))
    peer.open(1, is_end=True)
    peer[1].send_data([b"x" * 20])
    peer[1].send_tail(b"trailers")
    assert kinds(peer) == [(http2.DATA, 1)]
    peer.send(http2.window_update(1, 10))
    data, trailers = peer.frames()
    assert (data.kind, trailers.kind, trailers.payload) == (http2.DATA, http2.HEADERS, b"trailers")
    assert peer[1].is_cancelled is False


def test_large_answers_take_turns_and_small_ones_do_not_wait_for_them() -> None:
    peer = Peer(settings=http2.settings(initial_window_size=1 << 30))
    peer.send(http2.window_update(0, 1 << 30))
    peer.open(1, 3, 5)
    for stream_id in (1, 3):
        peer[stream_id].send_data([bytes(1 << 20)])
    peer[5].send_data([b"small"])
    order = [one.stream_id for one in peer.frames(1) if one.kind == http2.DATA]
    assert order.index(5) <= 2 * (64 << 10) // 16_384
    assert len(set(order[-10:])) == 2, "neither of the large ones was first"


def test_nothing_is_taken_from_queues_while_the_transport_is_full() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.pause()
    peer[1].send_data([b"abc"])
    assert peer.frames() == []
    before = peer.wakes
    peer.connection.resume()
    assert peer.wakes == before + 1
    assert sent_to(peer, 1) == 3


def test_frames_are_as_large_as_the_peer_takes() -> None:
    peer = Peer(settings=http2.settings(max_frame_size=1 << 20, initial_window_size=1 << 20))
    peer.open(1)
    peer[1].send_data([bytes(40_000)])
    assert [len(one.payload) for one in peer.frames()] == [40_000]
    peer[1].send_headers(bytes(40_000))
    assert len(peer.frames()[0].payload) == 40_000


def test_header_blocks_beyond_a_frame_are_continued() -> None:
    peer = Peer()
    peer.open(1, is_end=True)
    peer[1].send_headers(bytes(40_000), is_end=True)
    found = peer.frames()
    assert [(one.kind, one.flags, len(one.payload)) for one in found] == [
        (http2.HEADERS, http2.END_STREAM, 16_384),
        (http2.CONTINUATION, 0, 16_384),
        (http2.CONTINUATION, http2.END_HEADERS, 7_232),
    ]


def test_output_beside_a_receive_wakes_the_owner_once() -> None:
    peer = Peer()
    peer.open(1)
    peer.frames()
    before = peer.wakes
    peer[1].send_headers(b"a")
    peer[1].send_headers(b"b")
    assert peer.wakes == before + 1
    peer.frames()
    peer[1].send_headers(b"c")
    assert peer.wakes == before + 2


# -- the end ---------------------------------------------------------------------------------------


def test_a_drain_lets_calls_end_also_those_that_were_under_way_to_it() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.drain()
    goaway, ping = peer.frames()
    assert (goaway.kind, goaway.payload[:4]) == (http2.GOAWAY, b"\x7f\xff\xff\xff")
    peer.open(3)
    peer.send(http2.frame(http2.PING, http2.ACK, 0, ping.payload))
    (goaway,) = peer.frames()
    assert (goaway.error, goaway.payload[:4]) == (ErrorCode.NO_ERROR, b"\0\0\0\x03")
    peer.open(5)
    assert 5 not in peer.recording.streams
    for stream_id in (1, 3):
        assert not peer.has_ended()
        peer[stream_id].send_headers(b"done", is_end=True)
    assert peer.has_ended()
    assert not peer.connection.has_failed


def test_a_peer_that_leaves_gets_its_answers() -> None:
    peer = Peer()
    peer.open(1, is_end=True)
    peer.send(http2.frame(http2.GOAWAY, 0, 0, bytes(8)))
    peer[1].send_headers(b"done", is_end=True)
    peer.send(http2.ping())
    assert kinds(peer) == [(http2.HEADERS, 1), (http2.PING, 0)]
    peer.pass_time(60)
    assert peer.has_ended()


def test_streams_end_with_their_connection() -> None:
    peer = Peer()
    peer.open(1, 3)
    peer.connection.lost()
    assert [peer[one].is_cancelled for one in (1, 3)] == [True, True]
    peer[1].send_headers(b"late")
    peer[1].send_data([b"late"])
    peer[1].credit(5)
    peer[1].reset(ErrorCode.CANCEL)
    assert not peer.connection.streams


# -- fuzzing ---------------------------------------------------------------------------------------


def random_frames(source: random.Random) -> bytes:
    """Mostly legal."""
    next_id, found = 1, []
    for _ in range(40):
        stream_id = source.randrange(1, next_id + 4)
        match source.randrange(10):
            case 0 | 1 | 2:
                flags = http2.END_HEADERS | source.choice((0, 1))
                found.append(http2.headers(next_id, BLOCK, flags))
                next_id += 2
            case 3 | 4 | 5:
                size = source.choice((0, 1, 500, 16_384))
                found.append(http2.data(stream_id, bytes(size), source.choice((0, 0, 1, 8))))
            case 6:
                found.append(http2.rst_stream(stream_id))
            case 7:
                found.append(http2.window_update(source.choice((0, stream_id)), 1_000))
            case 8:
                found.append(http2.settings(initial_window_size=source.randrange(1 << 17)))
            case _:
                kind, flags = source.randrange(12), source.randrange(256)
                payload = source.randbytes(source.randrange(30))
                found.append(http2.frame(kind, flags, stream_id, payload))
    damaged = bytearray(b"".join(found))
    for _ in range(source.choice((0, 0, 1, 5))):
        damaged[source.randrange(len(damaged))] = source.randrange(256)
    return bytes(damaged)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_a_peer_sends_raises_or_leaks(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(25):
        usage = Usage()
        peer = Peer(usage=usage)
        data = random_frames(source)
        while data and not peer.has_ended():
            cut = source.randrange(1, 4_000)
            peer.send(data[:cut])
            data = data[cut:]
            for stream in [*peer.connection.streams.values()]:
                if source.random() < 0.3:
                    stream.hold(source.randrange(100))
                    stream.send_data([bytes(source.randrange(1, 3_000))])
                if source.random() < 0.1:
                    stream.send_tail(source.choice((b"", b"t")))
            peer.output(source.choice((1, 10_000)))
        peer.connection.lost()
        assert not peer.connection.streams
        assert (usage.received_bytes, usage.unsent_bytes) == (0, 0)
        assert (peer.connection.received_bytes, peer.connection.unsent_bytes) == (0, 0)
