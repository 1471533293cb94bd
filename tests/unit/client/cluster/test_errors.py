"""Errors that come over the wire are the errors of `mq.errors`."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from mq import errors
from mq.client.cluster.errors import (
    ResultAction,
    action_for,
    error_of,
    error_of_call,
    fresh,
    is_in_doubt,
    retry_after_s,
)
from mq.errors import Internal, LogDamaged, MqError, NotLeader, Unreachable
from mq.wire.v1 import status_pb2 as wire


def call_error(
    code: grpc.StatusCode, details: str = "", *trailing: tuple[str, bytes | str]
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


@pytest.mark.parametrize("name", [name for name in wire.Code.keys() if name != "SEND_OK"])  # noqa: SIM118
def test_every_code_of_the_protocol_has_its_class(name: str) -> None:
    error = error_of(wire.Code.Value(name), "why")
    assert error.code.name == name
    assert "why" in str(error)


def test_a_code_that_is_not_known_yet_is_named() -> None:
    error = error_of(999, "something new")
    assert isinstance(error, Internal)
    assert str(error) == "999: something new"


def test_errors_carry_the_leader_and_the_retry_after() -> None:
    not_leader = error_of(wire.NOT_LEADER, "", "b:2")
    assert isinstance(not_leader, NotLeader)
    assert not_leader.address == "b:2"
    assert retry_after_s(error_of(wire.FLOW_CONTROL, "", "", 1500)) == 1.5
    assert retry_after_s(error_of(wire.FLOW_CONTROL, "")) == 0


def test_a_call_that_failed_says_what_the_broker_said() -> None:
    status = wire.Status(code=wire.TOPIC_NOT_FOUND, text="no topic x")
    failure = call_error(
        grpc.StatusCode.NOT_FOUND, "short", ("mq-status-bin", status.SerializeToString())
    )
    error = error_of_call(failure, "a:1")
    assert isinstance(error, errors.TopicNotFound)
    assert str(error) == "no topic x"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Unreachable),
        (grpc.StatusCode.CANCELLED, Unreachable),
        (grpc.StatusCode.INTERNAL, Unreachable),
        (grpc.StatusCode.UNIMPLEMENTED, Internal),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Internal),
    ],
)
def test_without_words_of_the_broker_the_address_and_the_status_are_named(
    code: grpc.StatusCode, kind: type[MqError]
) -> None:
    error = error_of_call(call_error(code, "details"), "a:1")
    assert type(error) is kind
    assert "a:1" in str(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        assert str(error) == "a:1: no answer in time"
        return
    assert code.name in str(error)
    assert "details" in str(error)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (
            (
                "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
                "Failed to connect to remote host: Connection refused"
            ),
            "connection refused",
        ),
        (
            (
                "errors resolving a:1: [field:hostname lookup error:address lookup failed for a:1: "
                "Domain name not found]"
            ),
            "no such host",
        ),
        (
            (
                "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:5557: "
                "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame "
                "type 79)"
            ),
            (
                "it does not speak gRPC, a metrics port perhaps: clients want the port of --port, "
                "8081 by default"
            ),
        ),
        (
            (
                "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:8082: "
                "Socket closed"
            ),
            (
                "it closes connections at once: stopping, a Raft port, or one that wants TLS "
                "(tls=True, --tls); clients want the port of --port, 8081 by default"
            ),
        ),
        ("Socket closed", "the connection was closed"),
        ("something new", "UNAVAILABLE, something new"),
    ],
)
def test_a_failed_connection_has_a_plain_reason(details: str, reason: str) -> None:
    error = error_of_call(call_error(grpc.StatusCode.UNAVAILABLE, details), "a:1")
    assert str(error) == f"a:1: {reason}"


def test_a_status_that_cannot_be_read_is_left_aside() -> None:
    failure = call_error(grpc.StatusCode.UNAVAILABLE, "x", ("mq-status-bin", b"\xff\xff\xff"))
    assert isinstance(error_of_call(failure, "a:1"), Unreachable)


def test_one_more_of_the_same_is_equal_and_another() -> None:
    original = error_of(wire.NOT_LEADER, "text", "b:2")
    copy = fresh(original)
    assert copy is not original
    assert isinstance(copy, NotLeader)
    assert (str(copy), copy.address) == ("text", "b:2")
    damaged = fresh(LogDamaged("file", 7, "why", "what to do"))
    assert isinstance(damaged, LogDamaged)
    assert damaged.position == 7


def test_only_what_may_be_stored_is_in_doubt() -> None:
    doubtful = {code for code in wire.Code.values() if is_in_doubt(code)}
    assert doubtful == {wire.OUTCOME_UNKNOWN, wire.FLUSH_TIMEOUT, wire.REPLICATION_TIMEOUT}


def test_only_retryable_errors_of_the_broker_are_retried() -> None:
    """Two that a new route or another name may help with are the exceptions."""
    for code in wire.Code.values():
        if code == wire.SEND_OK:
            assert action_for(code) is ResultAction.STORED
        elif code in (wire.TOPIC_NOT_FOUND, wire.QUEUE_NOT_FOUND):
            assert action_for(code) is ResultAction.REROUTE
        elif code == wire.ILLEGAL_SEQUENCE:
            assert action_for(code) is ResultAction.RENUMBER
        elif code not in (wire.REBALANCING, wire.MESSAGES_DAMAGED, wire.REBUILDING):  # of readers
            is_retried = action_for(code) in (
                ResultAction.FOLLOW,
                ResultAction.WAIT,
                ResultAction.RETRY,
            )
            assert is_retried == error_of(code, "").retryable, wire.Code.Name(code)
    assert action_for(12345) is ResultAction.FAIL
