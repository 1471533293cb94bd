"""Metrics with TLS: `metrics.tls = on`, by the files of the broker."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from os import kill
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files
from tests.support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.files()


@pytest.fixture
def broker(tmp_path: Path, files: Files) -> Iterator[BrokerProcess]:
    flags = [each for one in files.flags("broker").items() for each in one]
    with BrokerProcess(tmp_path / "data", "--metrics-tls", "on", *flags) as process:
        yield process
        assert "Traceback" not in process.output(), process.output()


def scraped(broker: BrokerProcess, files: Files) -> str:
    url = f"https://127.0.0.1:{broker.metrics_port}/metrics"
    context = ssl.create_default_context(cafile=files.ca)
    # As Prometheus does.
    context.set_alpn_protocols(["h2", "http/1.1"])
    with urllib.request.urlopen(url, context=context, timeout=30) as response:
        text: str = response.read().decode()
        return text


def not_after_s(text: str) -> float:
    found = re.search(r'^mq_tls_not_after_seconds\{listener="broker"\} (\S+)$', text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_metrics_are_served_with_tls_and_not_without(broker: BrokerProcess, files: Files) -> None:
    assert "mq_raft_is_leader 1.0" in scraped(broker, files)
    with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
        urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=30)


def test_slow_handshakes_and_garbage_hold_up_no_scrape(broker: BrokerProcess, files: Files) -> None:
    with contextlib.ExitStack() as stack:
        for data in (b"", b"\x16", b"\x16\x03\x01\xff\xff" + bytes(100), b"GET / HTTP/1.1\r\n\r\n"):
            opened = socket.create_connection(("127.0.0.1", broker.metrics_port), timeout=30)
            stack.enter_context(opened)
            opened.sendall(data)
        assert "mq_raft_is_leader" in scraped(broker, files)


def test_the_end_of_the_certificate_is_a_metric_and_a_new_one_is_used_when_it_is_told(
    broker: BrokerProcess, authority: Authority, files: Files
) -> None:
    days = (not_after_s(scraped(broker, files)) - time.time()) / 86_400
    assert 29 < days < 31
    before = ssl.get_server_certificate(("127.0.0.1", broker.metrics_port))
    pair = authority.renew(files)
    kill(broker.pid, signal.SIGHUP)

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", broker.metrics_port))

    poll(lambda: shown() == pair.cert.decode(), "the new certificate")
    assert before != pair.cert.decode()
    assert not_after_s(scraped(broker, files))
