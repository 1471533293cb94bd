"""docs/BROKER.md lists the metrics that a broker serves, with their labels."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from mq.client import Consumer
from tests.support.broker_process import BrokerProcess
from tests.support.topics import committed, eventually, fill

ROOT = Path(__file__).resolve().parents[2]


def documented() -> dict[str, set[str]]:
    """Labels by metric."""
    page = (ROOT / "docs" / "BROKER.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:mq|process)_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def text(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        found: str = response.read().decode()
    return found


def served(port: int) -> tuple[set[str], dict[str, set[str]]]:
    """All metrics; and the labels of those that have a value."""
    page = text(port)
    names = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    samples = re.findall(r"^(\w+?)(?:_count)?(?:\{(.*)\})? ", page, re.MULTILINE)
    labels = {name: set(re.findall(r'(\w+)="', pairs)) for name, pairs in samples}
    # When a histogram began is the library's own addition.
    return {name for name in names if not name.endswith("_created")}, labels


def test_the_table_of_metrics_is_what_a_broker_serves(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker.address, "orders", 2, 1)
        with Consumer(broker.address, "readers", "orders", start="earliest") as consumer:
            eventually(lambda: consumer.poll(timeout_s=0.1))
            eventually(lambda: len(committed(broker.address, "readers", "orders")) == 2)
            eventually(lambda: "mq_consumer_lag_seconds" in served(broker.metrics_port)[1])
            eventually(lambda: 'language="python"' in text(broker.metrics_port))
            names, labels = served(broker.metrics_port)
    expected = documented()
    assert names == expected.keys()
    for name in expected.keys() & labels.keys():
        assert labels[name] == expected[name], name
    assert {"mq_rpc_latency_seconds", "mq_consumer_lag_messages"} <= labels.keys()
