"""HTTP/2 floods against the client port of a leader, beside calls of another client.

Each flood is cut off after a bounded number of frames, with GOAWAY and ENHANCE_YOUR_CALM, and the
other client is answered meanwhile: the figures are printed (`pytest -s`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from mq.http2.limits import Limits
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse
from tests.conformance.calls import path_of
from tests.support import http2_frames as http2
from tests.support.broker_set import BrokerSet
from tests.support.http2_frames import Flood, Http2Client

SECONDS = 1.0
GRPCIO_SECONDS = 0.3
GROWTH_BYTES_MAX = 50 << 20
# Far above what is taken: the buffers of the kernel.
SENT_BYTES_MAX = 20 << 20
# Generous: grpcio works for seconds on what a flood has sent in a third of one.
ANSWER_S_MAX = 60.0
PATH = path_of("ClusterService/Route")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    # Patient: the flood, its client and three brokers share the cores of the machine.
    flags = ("--raft-election-timeout-ms", "2000", "--broker-transport", "mq")
    with BrokerSet(tmp_path_factory.mktemp("floods"), *flags) as started:
        yield started


# -- the floods ------------------------------------------------------------------------------------


def pings() -> Iterator[bytes]:
    return itertools.repeat(http2.ping() * 1_000)


def empty_continuations() -> Iterator[bytes]:
    yield http2.headers(1, http2.call_headers(PATH), flags=0)
    yield from itertools.repeat(http2.continuation(1, b"") * 1_000)


def empty_data() -> Iterator[bytes]:
    yield http2.headers(1, http2.call_headers(PATH))
    yield from itertools.repeat(http2.data(1, b"") * 1_000)


def continuations() -> Iterator[bytes]:
    """Headers without an end, as CVE-2024-27316 and its kin."""
    yield http2.headers(1, http2.call_headers(PATH), flags=0)
    yield from itertools.repeat(http2.continuation(1, http2.header_field("x", "y" * 16_000)) * 8)


def resets() -> Iterator[bytes]:
    """Rapid reset, CVE-2023-44487."""
    block = http2.call_headers(PATH)
    for first in itertools.count(1, 1_000):
        yield b"".join(
            http2.headers(stream_id, block) + http2.rst_stream(stream_id)
            for stream_id in range(first, first + 1_000, 2)
        )


def streams_without_end() -> Iterator[bytes]:
    block = http2.call_headers(PATH)
    for first in itertools.count(1, 1_000):
        yield b"".join(
            http2.headers(stream_id, block) for stream_id in range(first, first + 1_000, 2)
        )


def changed_settings() -> Iterator[bytes]:
    return itertools.repeat(http2.settings(initial_window_size=65_535) * 1_000)


def window_updates() -> Iterator[bytes]:
    return itertools.repeat(http2.window_update(0, 1) * 1_000)


def priorities() -> Iterator[bytes]:
    return itertools.repeat(http2.frame(http2.PRIORITY, 0, 3, b"\0\0\0\0\x10") * 1_000)


def made_resets() -> Iterator[bytes]:
    """MadeYouReset, CVE-2025-8671: the server is made to reset each stream."""
    block = http2.call_headers(PATH)
    for first in itertools.count(1, 1_000):
        yield b"".join(
            http2.headers(stream_id, block) + http2.window_update(stream_id, 0)
            for stream_id in range(first, first + 1_000, 2)
        )


FLOODS = (
    pings,
    empty_continuations,
    empty_data,
    continuations,
    resets,
    made_resets,
    streams_without_end,
    changed_settings,
    window_updates,
    priorities,
)
GRPCIO_CUTS_OFF = (pings, empty_continuations, empty_data)


class Figures(NamedTuple):
    flood: Flood
    growth_bytes: int
    answer_times_s: list[float]
    has_same_leader: bool

    def show(self, name: str) -> None:
        times = sorted(self.answer_times_s)
        p99_s = times[len(times) * 99 // 100]
        print(  # noqa: T201 - the figures are asked for
            f"{name}: {self.flood.bytes_sent / 1e6:.1f} MB in {self.flood.seconds:.2f} s, "
            f"{'cut off' if self.flood.was_cut_off else 'not cut off'}, "
            f"RSS {self.growth_bytes / 1e6:+.0f} MB, {len(times)} calls answered meanwhile, "
            f"p99 {p99_s * 1000:.1f} ms"
        )


def flooded(
    brokers: BrokerSet, chunks: Callable[[], Iterator[bytes]], seconds: float = SECONDS
) -> Figures:
    """One connection floods the leader, while another one asks it something again and again."""
    leader = brokers.leader()
    before = brokers.status(leader)
    assert before is not None
    found: list[Flood] = []
    with Http2Client(brokers.address(leader)) as client:
        client.send(http2.settings_ack())
        flood = threading.Thread(target=lambda: found.append(client.flood(chunks(), seconds)))
        flood.start()
        times = list(_asked_while(flood, brokers.address(leader)))
        flood.join()
    after = brokers.status(leader)
    assert after is not None
    figures = Figures(
        found[0],
        after.rss_bytes - before.rss_bytes,
        times,
        (after.leader_id, after.term) == (leader, before.term),
    )
    figures.show(chunks.__name__)
    return figures


def _asked_while(flood: threading.Thread, address: str) -> Iterator[float]:
    """The time that each call took; at least one of them began after the flood."""
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            PATH,
            request_serializer=RouteRequest.SerializeToString,
            response_deserializer=RouteResponse.FromString,
        )
        until, is_over = time.monotonic() + 0.5, False
        while not is_over:
            is_over = not flood.is_alive() and time.monotonic() > until
            began = time.monotonic()
            ask(RouteRequest(), timeout=ANSWER_S_MAX)
            yield time.monotonic() - began
            time.sleep(0.005)


@pytest.mark.parametrize("chunks", FLOODS, ids=lambda chunks: chunks.__name__)
def test_a_flood_is_cut_off(brokers: BrokerSet, chunks: Callable[[], Iterator[bytes]]) -> None:
    figures = flooded(brokers, chunks)
    assert figures.flood.was_cut_off
    if figures.flood.goaway is not None:
        assert figures.flood.goaway.error == http2.ENHANCE_YOUR_CALM
    assert figures.flood.bytes_sent < SENT_BYTES_MAX
    assert figures.growth_bytes < GROWTH_BYTES_MAX
    assert figures.has_same_leader


def test_grpcio_survives_every_flood(tmp_path: Path) -> None:
    """It cuts off few of them (`mq.rpc.grpcio`), and the others cost CPU and bounded memory."""
    flags = ("--broker-transport", "grpcio")
    with BrokerSet(tmp_path, *flags, count=1) as broker:
        # Those that it cuts off end by that, however slow the machine is.
        found = {one: flooded(broker, one, ANSWER_S_MAX) for one in GRPCIO_CUTS_OFF}
        others = [one for one in FLOODS if one not in found]
        found |= {one: flooded(broker, one, GRPCIO_SECONDS) for one in others}
    assert all(found[one].flood.was_cut_off for one in GRPCIO_CUTS_OFF)
    assert sum(figures.growth_bytes for figures in found.values()) < 4 * GROWTH_BYTES_MAX
    assert all(figures.has_same_leader for figures in found.values())


# -- limits of a connection ------------------------------------------------------------------------


def test_too_many_pings_are_ended_with_a_reason(brokers: BrokerSet) -> None:
    goaway = flooded(brokers, pings).flood.goaway
    assert goaway is not None
    assert (goaway.error, goaway.text) == (http2.ENHANCE_YOUR_CALM, "too_many_pings")


def test_clients_may_ping_at_the_allowed_rate(brokers: BrokerSet) -> None:
    with Http2Client(brokers.address("n0")) as client:
        allowed = Limits().pings.burst
        client.send(http2.settings_ack() + http2.ping() * allowed)
        answers = [one for one in client.frames(0.3) if one.kind in (http2.PING, http2.GOAWAY)]
        assert [one.kind for one in answers] == [http2.PING] * allowed
        assert client.is_open


@pytest.mark.parametrize(
    ("fields", "characters", "code"),
    [
        (1, 17_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (17, 1_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (1, 1 << 20, grpc.StatusCode.UNAVAILABLE),  # the connection ends
    ],
)
def test_metadata_beyond_the_limit_is_refused(
    brokers: BrokerSet, fields: int, characters: int, code: grpc.StatusCode
) -> None:
    own_limit = [("grpc.max_metadata_size", 4 << 20), ("grpc.absolute_max_metadata_size", 4 << 20)]
    metadata = [(f"x-{at}", "y" * characters) for at in range(fields)]
    with grpc.insecure_channel(brokers.address("n0"), options=own_limit) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(PATH)(b"", metadata=metadata, timeout=ANSWER_S_MAX)
        assert refused.value.code() is code
        channel.unary_unary(PATH)(b"", metadata=[("x", "y" * 15_000)], timeout=ANSWER_S_MAX)


def test_a_client_that_does_not_greet_is_disconnected(brokers: BrokerSet) -> None:
    began, reasons = time.monotonic(), []
    address = brokers.address("n0")
    with Http2Client(address, b"") as silent, Http2Client(address) as without_ack:
        for client in (silent, without_ack):
            reasons += [one.text for one in client.frames(60.0) if one.kind == http2.GOAWAY]
            assert not client.is_open
    assert time.monotonic() - began < 30
    assert reasons == ["settings_timeout"] * 2


def test_clients_are_told_the_limits_of_a_connection(brokers: BrokerSet) -> None:
    with Http2Client(brokers.address("n0")) as client:
        told = next(one for one in client.frames(10.0) if one.kind == http2.SETTINGS)
    values = http2.settings_of(told)
    assert values["max_concurrent_streams"] == Limits().streams_max
    assert values["max_header_list_size"] == Limits().header_list_bytes_max
