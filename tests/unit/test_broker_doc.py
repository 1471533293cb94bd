"""The tables of docs/BROKER.md agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mq import errors, levels, names
from mq.admin import inspector, schedule
from mq.broker import catalog, directory, other_set, publishing
from mq.broker.consumer import (
    commits,
    filters,
    groups,
    pulling,
    sql92,
    sql92_logic,
    subscriber,
    unsent,
)
from mq.broker.consumer.membership import Group
from mq.broker.consumer.sql92 import compile_sql
from mq.broker.receive import grants
from mq.broker.retry import dead_letters
from mq.broker.state import dedup, transactions
from mq.broker.transaction import transacting
from mq.client import encode
from mq.errors import MqError
from mq.http2.limits import Limits
from mq.limits import BESIDE_BODY_BYTES_MAX
from mq.rpc import clients, consumer, methods, publish_stream, server, status
from mq.rpc import limits as request
from mq.sections import BrokerConfig, StoreConfig, TransactionsConfig
from mq.store import lookup

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "BROKER.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of all rows below this line, up to the next heading."""
    part = PAGE.partition(f"\n{heading}\n")[2]
    assert part, heading
    part = re.split(r"^#", part, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    # A bar within a cell is escaped.
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[1:]]
    return [[cell.strip() for cell in row] for row in cells]


def test_the_table_of_errors_is_the_one_that_answers_are_made_by() -> None:
    classes = {
        one.code: one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, MqError) and one is not MqError
    }
    expected = [
        [f"`{code.name}`", f"`{grpc_code.name}`", "yes" if classes[code].retryable else "no"]
        for code, grpc_code in status.GRPC_CODES.items()
    ]
    assert [row[:3] for row in rows("## Errors")] == expected


def size(number: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:g} {name}"
    return f"{number} bytes"


def seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"


def limits() -> dict[str, str]:
    store, broker, cache = StoreConfig(), BrokerConfig(), subscriber.CacheLimits()
    assert filters.TAGS_CHARACTERS_MAX == sql92.TEXT_CHARACTERS_MAX
    return {
        "**body of a message** (`store.message_bytes_max`)": size(store.message_bytes_max),
        "all else of a message, beyond the largest body": size(BESIDE_BODY_BYTES_MAX),
        "properties of a message, checked by the client": (
            f"{encode.PROPERTIES_MAX}, {size(encode.PROPERTIES_BYTES_MAX)}"
        ),
        "**batch, or entry of the log** (`store.entry_bytes_max`)": size(store.entry_bytes_max),
        "queues of a topic": f"{catalog.QUEUES_MAX:,}",
        "broker sets of a cluster; addresses of one": (
            f"{directory.SETS_MAX:,}; {other_set.ADDRESSES_MAX}"
        ),
        "name of a topic or group": f"{names.NAME_CHARACTERS_MAX} characters",
        "`producer_id`, `member_id`": (
            f"{names.NAME_CHARACTERS_MAX} and {consumer.MEMBER_ID_CHARACTERS_MAX} "
            "printable characters"
        ),
        "tags in a filter; characters of tags or SQL": (
            f"{filters.TAGS_MAX}; {sql92.TEXT_CHARACTERS_MAX:,}"
        ),
        "SQL: parentheses around each other; characters of a pattern; of a number": (
            f"{sql92.NESTING_MAX}; {sql92.PATTERN_CHARACTERS_MAX}; "
            f"{sql92_logic.NUMBER_CHARACTERS_MAX}"
        ),
        "producers remembered; ranges of numbers; places at least": (
            f"{dedup.PRODUCERS_MAX:,}; {dedup.RANGES_MAX}; {dedup.NEWEST_MIN}"
        ),
        "one `Pull`, one delivery at the most": size(pulling.READ_BYTES_MAX),
        "cache of a member, a queue: default": (
            f"{cache.messages:,} messages, {size(cache.size_bytes)}"
        ),
        "cache of a member, a queue: at the most": (
            f"{consumer.CACHE_MESSAGES_MAX:,} messages, {size(consumer.CACHE_BYTES_MAX)}"
        ),
        "**in flight** (`broker.in_flight_bytes`), and batches": (
            f"{size(broker.in_flight_bytes)}, {publishing._IN_FLIGHT_MAX:,}"
        ),
        "**unsent** (`broker.unsent_bytes`); a delivery at any time": (
            f"{size(broker.unsent_bytes)}; {size(unsent.SMALL_BYTES)}"
        ),
        "**a send is answered as not known** (`broker.send_timeout_ms`)": (
            seconds(broker.send_timeout_ms)
        ),
        "long poll; any unary call": (f"{pulling._WAIT_S_MAX:g} s; {methods.UNARY_S_MAX:g} s"),
        "**sign of life** (`broker.heartbeat_ms`); **silence** (`broker.member_expires_ms`)": (
            f"{seconds(broker.heartbeat_ms)}; {seconds(broker.member_expires_ms)}"
        ),
        "broken stream, clustering and broadcast": seconds(groups._RECONNECT_MS),
        "release of a queue, clustering": seconds(Group("any")._revoke_timeout_ms),
        "settling after a fail-over": seconds(groups._SETTLE_MS),
        "progress gathers before it is committed": seconds(1000 * commits._GATHER_S),
        "messages found by a key; browsed at once": (
            f"{lookup.QUERY_RESULTS_MAX}; {inspector.BROWSE_MAX:,}"
        ),
        "a page of waiting messages, leases or connections": one_limit(
            schedule.LIST_MAX, inspector.LEASES_MAX, clients.LIST_MAX
        ),
        "dead letters of a group settled one by one and still in their queue": (
            f"{dead_letters.SETTLED_MAX:,}"
        ),
        **message_type_limits(),
        **connection_limits(),
    }


def one_limit(*numbers: int) -> str:
    (number,) = set(numbers)
    return f"{number:,}"


def message_type_limits() -> dict[str, str]:
    checks = TransactionsConfig()
    return {
        "delay of a message": f"{levels.DELAY_MS_MAX // 86_400_000} days",
        "open transactions; ends remembered": (
            f"{transacting.OPEN_MAX:,}; {transactions.ENDED_MAX:,}"
        ),
        "**questions about a transaction** (`transactions.*`)": (
            f"after {seconds(checks.first_check_ms)}, every {seconds(checks.check_interval_ms)}, "
            f"{checks.checks_max} times"
        ),
        "**retries of a message** (`broker.retries_max`, or by group)": (
            f"{BrokerConfig().retries_max}"
        ),
        "invisible time of a received message: default; range": (
            f"{seconds(consumer.INVISIBLE_MS_DEFAULT)}; {seconds(consumer.INVISIBLE_MS_MIN)} to "
            f"{consumer.INVISIBLE_MS_MAX // 3_600_000} h"
        ),
        "messages in flight of one group in one queue": f"{grants.IN_HAND_MAX:,}",
        "messages in a receive": f"{consumer.MESSAGES_MAX:,}",
    }


def connection_limits() -> dict[str, str]:
    of_connection = Limits()
    return {
        "metadata of a call; calls at once on a connection": (
            f"{size(of_connection.header_list_bytes_max)}; {of_connection.streams_max:,}"
        ),
        "pings without data of a connection: at once; in the long run": (
            f"{of_connection.pings.burst}; {of_connection.pings.per_s:g}/s"
        ),
        "HTTP/2 greeting of a client; connection without calls": (
            f"{of_connection.handshake_s:g} s; {of_connection.idle_s / 60:g} min"
        ),
    }


def test_the_table_of_limits_has_the_numbers_of_the_code() -> None:
    assert dict(rows("### Limits and times")) == limits()


def request_limits() -> dict[str, str]:
    found = {field: f"{limit:,}" for field, limit in request.LIMITS.items()}
    found["Batch.messages"] += f"; of a prepared batch {request.PREPARED_MAX:,}"
    return found


def test_the_table_of_requests_has_the_limits_of_the_code() -> None:
    expected = {f"`{field}`": text for field, text in request_limits().items()}
    assert dict(rows("### Limits of requests")) == expected


def test_comments_of_the_protocol_have_the_limits_of_the_code() -> None:
    found = {}
    for path in (ROOT / "proto" / "mq" / "v1").glob("*.proto"):
        message = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if begins := re.match(r"message (\w+)", line):
                message = begins[1]
            if field := re.match(r"  .* (\w+) = \d+;  // at most ([\d,]+)", line):
                found[f"{message}.{field[1]}"] = int(field[2].replace(",", ""))
    assert found == request.LIMITS


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    cache = subscriber.CacheLimits()
    for number in (
        f"{seconds(groups._SETTLE_MS)} after",
        f"after {seconds(groups._RECONNECT_MS)}",
        f"after {seconds(Group('any')._revoke_timeout_ms)}",
        f"after {seconds(BrokerConfig().member_expires_ms)}",
        f"the {dedup.PRODUCERS_MAX:,} producers",
        f"up to {dedup.RANGES_MAX} ranges",
        f"at most {publish_stream._REQUESTS_MAX} requests",
        f"at most {size(cache.delivery_bytes)}",
        f"{size(server._REQUEST_OVERHEAD_BYTES)}; a larger one",
        f"`broker.drain_ms` ({seconds(BrokerConfig().drain_ms)})",
    ):
        assert number in PAGE, number
    assert Group("any")._expires_ms == BrokerConfig().member_expires_ms


SQL = {row[0]: re.findall(r"`([^`]+)`", row[1]) for row in rows("## Filters")}


@pytest.mark.parametrize(
    "condition",
    [
        *(
            text
            for kind in ("condition", "range", "list", "pattern", "missing")
            for text in SQL[kind]
        ),
        *(f"amount {sign} 5" for sign in SQL["comparison"]),
        *(f"amount = {literal}" for literal in (*SQL["number"], *SQL["text"])),
        *(f"{name} = 'EU'" for name in SQL["property"]),
    ],
)
def test_every_form_in_the_table_of_sql_is_a_filter(condition: str) -> None:
    compile_sql(condition)
