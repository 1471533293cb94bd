"""`mq transaction`: what it asks the broker and what it shows; and `mq bench transaction`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.cli import bench as bench_module
from mq.cli.bench import bench
from mq.cli.bench_load import Load, Measured
from mq.cli.transactions import transaction
from mq.errors import GroupNotFound, TransactionNotFound
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.transaction_pb2 import EndTransactionResponse
from tests.support.commands import FakeAdmin, assert_fits, run, run_json
from tests.unit.cli.test_bench import Broker

if TYPE_CHECKING:
    from mq.cli.bench_load import Show

ID = "set-0:68355410"


def listed(count: int = 1, **fields: object) -> pb.ListTransactionsResponse:
    given = {
        "transaction_id": ID,
        "topic": "orders",
        "producer_group": "shop",
        "stored_at_ms": 1_783_850_000_123,
        "messages": 1,
        "checks": 3,
        "checks_max": 15,
        "next_check_ms": 1_783_850_030_123,
        "producers": 2,
    }
    one = pb.TransactionInfo(**{**given, **fields})  # type: ignore[arg-type]
    return pb.ListTransactionsResponse(transactions=[one], open=count)


@pytest.mark.parametrize("columns", [70, 80, 140])
def test_the_list_fits_the_terminal(columns: int) -> None:
    admin = FakeAdmin(
        list_transactions=listed(count=1 << 40, topic="t" * 127, producer_group="g" * 127)
    )
    text = run(transaction, "list", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    assert ID in text
    assert "3 of 15" in text
    assert f"{1 << 40:,} transactions open, the oldest 1 are shown" in text


def test_the_list_asks_for_a_group_and_a_number() -> None:
    admin = FakeAdmin(list_transactions=listed())
    found = run_json(transaction, "list", "--group", "shop", "--max", "7", admin=admin)
    assert admin.calls == [("list_transactions", ("shop", 7), {})]
    assert found["open"] == 1
    assert found["transactions"][0]["transaction_id"] == ID
    assert found["transactions"][0]["next_check_ms"] == 1_783_850_030_123


def test_an_empty_list_says_so() -> None:
    admin = FakeAdmin(list_transactions=pb.ListTransactionsResponse())
    assert run(transaction, "list", admin=admin).stdout == "No transaction is open.\n"


def test_commit_and_rollback_end_one() -> None:
    ended = EndTransactionResponse(queue_id=2, queue_offset=17, log_offset=99, stored_at_ms=5)
    admin = FakeAdmin(end_transaction=ended)
    text = run(transaction, "commit", ID, admin=admin).stdout
    assert text == f"Committed {ID}: its message is in queue 2, offset 17.\n"
    assert run(transaction, "rollback", ID, admin=admin).stdout == f"Rolled back {ID}.\n"
    document = run_json(transaction, "commit", ID, admin=admin)
    assert (document["state"], document["queue_offset"]) == ("committed", 17)
    assert run_json(transaction, "rollback", ID, admin=admin)["state"] == "rolled_back"
    assert [each["commit"] for _, each in admin.called("end_transaction")] == [
        True,
        False,
        True,
        False,
    ]


def test_check_names_the_producer() -> None:
    admin = FakeAdmin(check_transaction="p\x1b[2J")
    text = run(transaction, "check", ID, admin=admin).stdout
    assert text == f"Asked producer p\\x1b[2J about {ID}.\n"
    assert run_json(transaction, "check", ID, admin=admin)["transaction_id"] == ID


@pytest.mark.parametrize(
    ("command", "method"),
    [
        ("commit", "end_transaction"),
        ("rollback", "end_transaction"),
        ("check", "check_transaction"),
    ],
)
def test_a_refusal_of_the_broker_is_one_line(command: str, method: str) -> None:
    for error in (TransactionNotFound("it was rolled back"), GroupNotFound("nobody")):
        result = run(transaction, command, ID, admin=FakeAdmin(**{method: error}))
        assert result.exit_code == 1
        assert result.stderr == f"error: {error.code.value}: {error}\n"


def test_the_bench_has_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Load, int]] = []

    def work(load: Load, parallel: int, _: Show) -> tuple[Measured, Measured]:
        asked.append((load, parallel))
        whole = Measured(2000, 256_000, 0.5, [float(at) for at in range(100)])
        return whole, Measured(10_000, 1, 1.0)

    monkeypatch.setattr(bench_module, "measure_transactions", work)
    found = run_json(bench, "transaction", "--parallel", "7", "--server", "h:1", admin=Broker())
    assert (found["bench"], found["parallel"]) == ("transaction", 7)
    assert (found["messages_per_s"], found["produce_messages_per_s"]) == (4_000, 10_000)
    assert (found["p50_ms"], found["p99_ms"], found["vs_produce"]) == (50.0, 99.0, 0.4)
    assert asked == [(Load("h:1", "bench", 1024, 5_000, None), 7)]
    assert_fits(run(bench, "transaction", admin=Broker()).stdout)
