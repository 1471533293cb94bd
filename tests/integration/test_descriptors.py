"""A broker with few descriptors, and more connections than it has: the log goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq import descriptors
from mq.client import Message, Producer
from mq.errors import Unreachable
from tests.support import http2_frames
from tests.support.broker_process import BrokerProcess
from tests.support.http2_frames import Http2Client
from tests.support.raft_cluster import poll

OPEN_FILES = 256
LIMIT = descriptors.connections_max(0, OPEN_FILES, listeners=1)
# Segments of this size roll every few messages: each needs descriptors of its own.
FLAGS = ("--store-segment-bytes", str(64 << 10), "--store-entry-bytes-max", str(32 << 10))
SMALL = (*FLAGS, "--store-message-bytes-max", str(16 << 10))


class LimitedBroker(BrokerProcess):
    """With at most `OPEN_FILES` descriptors, half of them to begin with."""

    @property
    def program(self) -> list[str]:
        script = (
            "import resource, runpy; "
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ({OPEN_FILES // 2}, {OPEN_FILES})); "
            "runpy.run_module('mq', run_name='__main__')"
        )
        return ["-c", script]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with LimitedBroker(tmp_path / "data", *SMALL) as started:
        yield started


@contextlib.contextmanager
def connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            for _ in range(count)
        ]


@contextlib.contextmanager
def greeted_connections(address: str, count: int) -> Iterator[None]:
    """As `connections`, of clients that may stay: others are disconnected after some seconds."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(Http2Client(address))
            assert next(client.frames(10.0)).kind == http2_frames.SETTINGS
            client.send(http2_frames.settings_ack())
        yield


def metric(broker: BrokerProcess, name: str) -> float:
    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def test_more_connections_than_descriptors_stop_no_writes(broker: BrokerProcess) -> None:
    with Producer(broker.address) as producer:
        producer.send("t", Message(b"first"))
        with connections(broker.address, 2 * OPEN_FILES):
            # Some thirty segments.
            for _ in range(128):
                assert producer.send("t", Message(os.urandom(15 << 10))).status == "SEND_OK"
    assert broker.is_running
    assert "check the disk" not in broker.output()


def test_a_connection_beyond_the_limit_is_closed_and_the_log_says_why(
    broker: BrokerProcess,
) -> None:
    with greeted_connections(broker.address, LIMIT):
        poll(lambda: metric(broker, "mq_client_connections") == LIMIT, "all are connected")
        with Http2Client(broker.address) as client:
            assert list(client.frames(5.0)) == []
            assert not client.is_open
        with pytest.raises(Unreachable), Producer(broker.address) as producer:
            producer.send("t", Message(b"refused"), timeout_s=1.0)
        assert metric(broker, "mq_client_connections_max") == LIMIT
        lines = poll(
            lambda: [one for one in broker.log() if one["event"] == "connections are refused"],
            "a line in the log",
        )
        assert [one["level"] for one in lines] == ["warning"]
        assert (lines[0]["connections"], lines[0]["limit"]) == (LIMIT, LIMIT)
    with Producer(broker.address) as producer:
        assert producer.send("t", Message(b"again")).status == "SEND_OK"
