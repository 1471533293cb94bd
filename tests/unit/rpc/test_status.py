"""Errors on the wire: each code of ours has one of gRPC's, and nothing else gets out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.protobuf.message import DecodeError

from mq import errors
from mq.errors import Code, FlowControl, IllegalRequest, Internal, MqError, NotLeader, SegmentFull
from mq.http2.status import Status
from mq.rpc.status import (
    GRPC_CODES,
    TEXT_BYTES_MAX,
    aborted,
    known_error,
    wire_code,
    wire_status,
)
from mq.wire.v1 import status_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_errors() -> Iterator[type[MqError]]:
    found = [MqError]
    while found:
        one = found.pop()
        found += one.__subclasses__()
        if one is not MqError and one.__module__ == errors.__name__:
            yield one


def test_every_code_of_the_protocol_has_a_grpc_code() -> None:
    on_the_wire = set(status_pb2.Code.keys()) - {"SEND_OK"}
    assert {code.name for code in GRPC_CODES} == on_the_wire


def test_retryable_codes_are_those_that_clients_may_try_again() -> None:
    """gRPC's own retries, and people, go by the status: an error of the caller's is none of it."""
    temporary = {
        Status.UNAVAILABLE,
        Status.RESOURCE_EXHAUSTED,
        Status.DEADLINE_EXCEEDED,
    }
    for error in all_errors():
        if error.code in GRPC_CODES:
            assert (GRPC_CODES[error.code] in temporary) == error.retryable, error


def test_errors_that_clients_never_see_are_internal() -> None:
    for error in all_errors():
        # Without its initialiser: some classes build their text from other parts.
        name = status_pb2.Code.Name(wire_code(error.__new__(error)))
        assert name == (error.code.name if error.code in GRPC_CODES else "INTERNAL")
    assert wire_code(SegmentFull("full")) == status_pb2.INTERNAL


def test_details_say_where_to_go_and_how_long_to_wait() -> None:
    status = wire_status(NotLeader("node-1", "host:8081"))
    assert (status.code, status.leader_address) == (status_pb2.NOT_LEADER, "host:8081")
    assert "node-1" in status.text
    assert wire_status(NotLeader(None, None)).leader_address == ""
    assert wire_status(FlowControl("later")).retry_after_ms > 0
    assert wire_status(IllegalRequest("no")).retry_after_ms == 0


@pytest.mark.parametrize("text", ["x" * 100_000, "ß" * 100_000, "\N{SNOWMAN}" * 100_000])
def test_a_text_is_cut_to_what_metadata_may_be(text: str) -> None:
    found = wire_status(IllegalRequest(text)).text
    assert TEXT_BYTES_MAX - 4 < len(found.encode()) <= TEXT_BYTES_MAX
    assert text.startswith(found)


def test_texts_of_unexpected_exceptions_are_hidden_from_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = known_error(KeyError("secret"))
    assert isinstance(error, Internal)
    assert "secret" not in str(error)
    assert "mistake of the broker" in caplog.text
    caplog.clear()
    assert known_error(DecodeError("bad wire")).code == Code.ILLEGAL_REQUEST
    mine = IllegalRequest("mine")
    assert known_error(mine) is mine
    assert caplog.text == "", "what is the client's is no news for operators"


def test_a_call_ends_with_a_status_and_both_trailers() -> None:
    refusal = aborted(IllegalRequest("a\nb\x00ü"))
    assert (refusal.code, refusal.text) == (Status.INVALID_ARGUMENT, "a\nb\x00ü")
    trailers = dict(refusal.metadata)
    assert trailers["mq-code"] == "ILLEGAL_REQUEST"
    told = trailers["mq-status-bin"]
    assert isinstance(told, bytes)
    status = status_pb2.Status.FromString(told)
    assert (status.code, status.text) == (status_pb2.ILLEGAL_REQUEST, "a\nb\x00ü")
