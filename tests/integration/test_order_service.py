"""examples/python/order_service.py does what it says, with a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from mq.client import Admin
from tests.support.broker_process import BrokerProcess

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "order_service.py"
DEADLINE_S = 120


def run(server: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "1"],
        env={**os.environ, "MQ_SERVER": server},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_orders_are_heard_of_as_the_database_has_them_and_cancelled_when_not_paid(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        # Twice: a shop minds its own orders.
        for _ in range(2):
            done = run(broker.address)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
            lines = done.stdout.splitlines()
            assert lines[:4] == [
                "order-1: COMMIT",
                "order-2: ROLLBACK",
                "order-3: UNKNOWN",
                "order-1: paid",
            ]
            assert sorted(lines[4:9]) == [
                "order-1: is to be paid within 1 s",
                "order-1: was paid",
                "order-3: is to be paid within 1 s",
                "order-3: not paid, cancelled",
                "order-3: the broker asks, the database has it: COMMIT",
            ]
            assert lines[9] == "[('order-1', 'paid'), ('order-3', 'cancelled')]"
        with Admin(broker.address) as admin:
            assert admin.list_transactions().open == 0
            queues = admin.describe_topic("service-orders").queues
            stored = [
                one.message
                for queue in queues
                for one in admin.browse_messages("service-orders", queue.queue_id, 0).messages
            ]
    orders = sorted(json.loads(one.body)["order"] for one in stored)
    assert orders == ["order-1", "order-1", "order-3", "order-3"]
    assert sorted(key for one in stored for key in one.keys) == orders
