"""Every bound and every rate of `mq.http2.limits`: kept, and no trouble for honest clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from mq.http2.frames import ErrorCode
from mq.http2.limits import Limits, Rate, TokenBucket, Usage
from tests.support import http2_frames as http2
from tests.unit.http2.peer import BLOCK, TOO_LARGE, Peer

# -- rates -----------------------------------------------------------------------------------------


def resets() -> Iterator[bytes]:
    """Rapid reset, CVE-2023-44487."""
    return (http2.headers(one, BLOCK) + http2.rst_stream(one) for one in count(1, 2))


def made_resets() -> Iterator[bytes]:
    """MadeYouReset, CVE-2025-8671: the server is made to reset each stream."""
    return (http2.headers(one, BLOCK) + http2.window_update(one, 0) for one in count(1, 2))


def made_resets_by_size() -> Iterator[bytes]:
    priority = http2.frame
    return (
        http2.headers(one, BLOCK) + priority(http2.PRIORITY, 0, one, b"abc") for one in count(1, 2)
    )


def made_resets_by_late_data() -> Iterator[bytes]:
    end = http2.END_HEADERS | http2.END_STREAM
    return (http2.headers(one, BLOCK, end) + http2.data(one, b"x") for one in count(1, 2))


def malformed_requests() -> Iterator[bytes]:
    return (http2.headers(one, http2.header_field("x", "y")) for one in count(1, 2))


def large_headers() -> Iterator[bytes]:
    block = http2.call_headers("/s/M", ("x", "y" * 16_300))
    return (
        http2.headers(one, block[:16_000], 0)
        + http2.continuation(one, block[16_000:], http2.END_HEADERS)
        for one in count(1, 2)
    )


def pings() -> Iterator[bytes]:
    return iter(http2.ping, b"")


def settings() -> Iterator[bytes]:
    return (http2.settings(initial_window_size=65_535) for _ in count())


def priorities() -> Iterator[bytes]:
    return (http2.frame(http2.PRIORITY, 0, 3, b"\0\0\0\0\x10") for _ in count())


def unknown_frames() -> Iterator[bytes]:
    return (http2.frame(0x77, 0, 0, b"x") for _ in count())


def empty_data() -> Iterator[bytes]:
    yield http2.headers(1, BLOCK)
    yield from (http2.data(1, b"") for _ in count())


def empty_data_after_the_end() -> Iterator[bytes]:
    yield http2.headers(1, BLOCK) + http2.window_update(1, 0)
    yield from (http2.data(1, b"") for _ in count())


def window_updates() -> Iterator[bytes]:
    return (http2.window_update(0, 1) for _ in count())


LIMITS = Limits()
FLOODS: list[tuple[Callable[[], Iterator[bytes]], Rate]] = [
    (resets, LIMITS.resets_by_peer),
    (made_resets, LIMITS.resets_by_us),
    (made_resets_by_size, LIMITS.resets_by_us),
    (made_resets_by_late_data, LIMITS.resets_by_us),
    (malformed_requests, LIMITS.resets_by_us),
    (large_headers, LIMITS.resets_by_us),
    (pings, LIMITS.pings),
    (settings, LIMITS.settings),
    (priorities, LIMITS.priorities),
    (unknown_frames, LIMITS.priorities),
    (empty_data, LIMITS.empty_data),
    (empty_data_after_the_end, LIMITS.empty_data),
    (window_updates, LIMITS.window_updates),
]
floods = pytest.mark.parametrize(
    ("flood", "rate"), FLOODS, ids=[flood.__name__ for flood, _ in FLOODS]
)


@floods
def test_a_flood_is_cut_off_after_its_burst(
    flood: Callable[[], Iterator[bytes]], rate: Rate
) -> None:
    peer = Peer()
    sent = 0
    for chunk in islice(flood(), 3 * rate.burst):
        if peer.has_ended():
            break
        peer.send(chunk)
        sent += 1
    assert peer.goaway().error == ErrorCode.ENHANCE_YOUR_CALM
    # Each call earns a few window updates.
    assert rate.burst <= sent <= rate.burst + 5


@floods
def test_frames_at_the_allowed_rate_are_never_cut_off(
    flood: Callable[[], Iterator[bytes]], rate: Rate
) -> None:
    peer = Peer()
    for chunk in islice(flood(), 4 * rate.burst):
        peer.send(chunk)
        peer.now_s += 1.01 / rate.per_s
        peer.output()
    assert not peer.has_ended()


def test_a_client_may_give_up_all_its_calls_at_their_deadline() -> None:
    peer = Peer()
    for first in range(1, 10_001, 2_000):
        peer.open(*range(first, first + 2_000, 2))
        peer.now_s += 1
        for stream_id in range(first, first + 2_000, 2):
            peer.send(http2.rst_stream(stream_id))
    assert not peer.has_ended()


def test_pings_are_free_while_there_is_data() -> None:
    """Clients measure bandwidth by them."""
    peer = Peer()
    peer.open(1)
    for _ in range(10 * LIMITS.pings.burst):
        peer[1].send_headers(b"x")
        peer.send(http2.ping())
        peer.output()
    assert not peer.has_ended()
    for _ in range(LIMITS.pings.burst + 2):
        peer.send(http2.ping())
    assert peer.goaway().text == "too_many_pings"


def test_window_updates_are_free_for_what_was_sent() -> None:
    peer = Peer(settings=http2.settings(initial_window_size=1 << 30))
    peer.open(1)
    for _ in range(3 * LIMITS.window_updates.burst):
        peer[1].send_data([bytes(1_000)])
        peer.output()
        peer.send(http2.window_update(0, 1_000) + http2.window_update(1, 1_000))
    assert not peer.has_ended()
    # Small answers go another way; a client of gRPC's sends both for each message that it reads.
    for _ in range(3 * LIMITS.window_updates.burst):
        peer.connection.write_data(peer[1], http2.data(1, bytes(10)), 10)
        peer.output()
        peer.send(http2.window_update(0, 10) + http2.window_update(1, 10))
    assert not peer.has_ended()


def test_a_bucket_fills_with_time_up_to_its_burst() -> None:
    bucket = TokenBucket(Rate(burst=3, per_s=2), 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(0.5) for _ in range(2)] == [True, False]
    assert [bucket.take(1_000.0) for _ in range(4)] == [True, True, True, False]


# -- bounds ----------------------------------------------------------------------------------------


def test_streams_beyond_the_limit_are_refused() -> None:
    peer = Peer(replace(LIMITS, streams_max=2))
    peer.open(1, 3, 5)
    (reset,) = peer.frames()
    assert (reset.stream_id, reset.error) == (5, ErrorCode.REFUSED_STREAM)
    peer.send(http2.rst_stream(1))
    peer.open(7)
    assert peer.frames() == []


def test_handlers_that_did_not_stop_yet_keep_their_places() -> None:
    """Else resets would start any number of them."""
    peer = Peer(replace(LIMITS, streams_max=2))
    peer.connection.lingering = 2
    peer.open(1)
    (reset,) = peer.frames()
    assert reset.error == ErrorCode.REFUSED_STREAM


def test_a_header_block_is_limited_in_bytes_and_frames() -> None:
    for more in ([bytes(16_000)] * 5, [b""] * (LIMITS.continuations_max + 1)):
        peer = Peer()
        peer.send(http2.headers(1, BLOCK, 0))
        for part in more:
            peer.send(http2.continuation(1, part))
        assert peer.goaway().error == ErrorCode.ENHANCE_YOUR_CALM


def test_large_metadata_ends_the_call_and_not_the_connection() -> None:
    peer = Peer()
    block = http2.call_headers("/s/M", ("x", "y" * 16_384))
    peer.send(http2.headers(1, block[:9_000], 0))
    peer.send(http2.continuation(1, block[9_000:], http2.END_HEADERS))
    answer, reset = peer.frames()
    assert (answer.kind, answer.payload) == (http2.HEADERS, TOO_LARGE)
    assert (reset.kind, reset.error) == (http2.RST_STREAM, ErrorCode.NO_ERROR)
    peer.send(http2.data(1, b"of the call that was refused"))
    peer.open(3)
    assert 3 in peer.connection.streams


def test_settings_of_one_frame_are_few() -> None:
    peer = Peer()
    peer.send(http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 33))
    assert peer.goaway().error == ErrorCode.ENHANCE_YOUR_CALM


def test_answers_that_are_not_read_are_limited() -> None:
    peer = Peer(replace(LIMITS, unsent_bytes_max=1_000_000))
    peer.open(1, 3)
    peer.connection.pause()
    peer[1].send_data([bytes(900_000)])
    assert not peer.has_ended()
    peer[3].send_data([bytes(200_000)])
    assert peer.goaway().error == ErrorCode.ENHANCE_YOUR_CALM
    assert peer.usage.unsent_bytes == 0


def test_answers_that_no_client_reads_are_limited_in_all() -> None:
    usage = Usage()
    peers = [Peer(replace(LIMITS, unsent_bytes_max_in_all=1_000), usage=usage) for _ in range(2)]
    for peer in peers:
        peer.open(1)
        peer.connection.pause()
        peer[1].send_data([bytes(600)])
    assert [peer.recording.overloads for peer in peers] == [0, 1]


def test_requests_in_memory_are_limited_by_connection_and_in_all() -> None:
    usage = Usage()
    limits = replace(LIMITS, received_bytes_max=1_000, received_bytes_max_in_all=1_500)
    peers = [Peer(limits, usage=usage) for _ in range(2)]
    for peer in peers:
        peer.open(1)
    assert peers[0][1].hold(1_000)
    assert not peers[0][1].hold(1)
    assert peers[1][1].hold(1_000)
    assert [peer.recording.overloads for peer in peers] == [0, 1]
    peers[0].connection.lost()
    assert usage.received_bytes == 1_000


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", http2.PREFACE, http2.PREFACE + http2.settings()])
def test_a_client_has_to_greet_in_time(sent: bytes) -> None:
    peer = Peer(settings=b"", acknowledges=False)
    peer.send(sent)
    peer.pass_time(LIMITS.handshake_s - 0.1)
    assert not peer.has_ended()
    peer.pass_time(0.2)
    goaway = peer.goaway()
    assert (goaway.error, goaway.text) == (ErrorCode.SETTINGS_TIMEOUT, "settings_timeout")


def test_a_silent_client_is_pinged_and_then_given_up() -> None:
    peer = Peer()
    peer.open(1)
    peer.pass_time(LIMITS.keepalive_s + 1)
    (ping,) = peer.frames()
    assert (ping.kind, ping.flags) == (http2.PING, 0)
    peer.send(http2.frame(http2.PING, http2.ACK, 0, ping.payload))
    peer.pass_time(LIMITS.keepalive_s + 1)
    assert [one.kind for one in peer.frames()] == [http2.PING]
    peer.pass_time(LIMITS.keepalive_timeout_s)
    assert peer.goaway().text == "keepalive_timeout"
    assert peer[1].is_cancelled


def test_a_connection_without_calls_ends_after_a_while() -> None:
    peer = Peer()
    peer.open(1)
    for _ in range(int(LIMITS.idle_s / 20)):
        peer.pass_time(20)
        peer.send(http2.window_update(0, 1))
    peer[1].send_headers(b"done", is_end=True)
    for _ in range(int(LIMITS.idle_s / 20) - 1):
        peer.pass_time(20)
        peer.send(http2.window_update(0, 1))
    assert not peer.has_ended()
    peer.output()
    peer.pass_time(60)
    assert peer.has_ended()
    assert peer.frames()[-1].error == ErrorCode.NO_ERROR


def test_an_answer_that_is_not_taken_is_dropped() -> None:
    peer = Peer(settings=http2.settings(initial_window_size=10))
    peer.open(1, 3)
    for stream_id in (1, 3):
        peer[stream_id].send_data([bytes(1_000)])
    peer[1].send_tail(b"done")
    peer.output()
    for _ in range(8):
        peer.pass_time(10)
        peer.send(http2.window_update(0, 1))
    assert peer[1].is_cancelled
    assert peer[3].is_cancelled is None, "a stream may stall as long as it likes"
    assert peer.connection.unsent_bytes == 990
