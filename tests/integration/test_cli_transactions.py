"""`mq transaction` and `mq bench transaction` in processes of their own, with a real broker."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import TYPE_CHECKING, Any

from mq.client import TransactionProducer
from tests.support.broker_process import BrokerProcess
from tests.support.topics import eventually
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from pathlib import Path

    from mq.client import HalfMessage


def test_an_operator_sees_ends_and_asks(tmp_path: Path) -> None:
    # The broker itself asks about none of them, however long the commands take.
    with BrokerProcess(tmp_path / "data", "--transactions-first-check-ms", "1h") as broker:

        def mq(*arguments: str, exit_code: int = 0) -> str:
            environment = {**os.environ, "MQ_SERVER": broker.address, "COLUMNS": "80"}
            done = run_mq(*arguments, environment=environment)
            assert done.returncode == exit_code, done.stdout + done.stderr
            return (done.stdout or done.stderr).decode()

        def metric(name: str) -> float:
            url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                lines = answer.read().decode().splitlines()
            (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
            return float(value)

        def execute(_message: HalfMessage, _arg: Any) -> str:
            return "UNKNOWN"

        def check(_message: HalfMessage) -> str:
            return "COMMIT"

        with TransactionProducer(broker.address, "shop", execute, check) as producer:
            ids = [
                producer.send_in_transaction("orders", str(number)).transaction_id
                for number in range(4)
            ]
            assert metric("mq_half_messages") == metric("mq_transactions_open") == 4
            text = mq("transaction", "list", "--group", "shop")
            assert all(one in text for one in ids)
            assert max(map(len, text.splitlines())) <= 80
            assert "4 transactions open" in text
            assert "Committed" in mq("transaction", "commit", ids[0])
            assert "Rolled back" in mq("transaction", "rollback", ids[1])
            assert "Asked producer" in mq("transaction", "check", ids[2])

            def still_open() -> list[str]:
                found = json.loads(mq("transaction", "list", "--json"))
                return [each["transaction_id"] for each in found["transactions"]]

            eventually(lambda: still_open() == [ids[3]], "the producer commits what it is asked")
        refused = mq("transaction", "commit", ids[1], exit_code=1)
        assert refused.startswith("error: TRANSACTION_NOT_FOUND: ")
        assert "was rolled back" in refused
        refused = mq("transaction", "check", ids[3], exit_code=1)
        assert refused.startswith("error: GROUP_NOT_FOUND: no producer of group shop")
        assert mq("transaction", "commit", "nonsense", exit_code=1).startswith(
            "error: ILLEGAL_REQUEST: "
        )
        assert metric("mq_transactions_committed_total") == 2
        assert metric("mq_transactions_rolled_back_total") == 1
        assert metric("mq_transactions_given_up_total") == 0
        assert metric("mq_transaction_checks_total") == 1
        assert metric("mq_transactions_open") == 1
        found = json.loads(mq("bench", "transaction", "--json", "--messages", "50"))
        assert found["messages"] == 50
        assert 0 < found["vs_produce"] < 1
        assert 0 < found["p50_ms"] <= found["p99_ms"]
