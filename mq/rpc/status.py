"""Errors on the wire: one table from our codes to gRPC's, and the details beside them."""

from __future__ import annotations

import contextlib
from typing import cast

import grpc
from google.protobuf.message import DecodeError

from mq.errors import Code, FlowControl, IllegalRequest, Internal, MqError, NotLeader
from mq.http2.calls import CallAborted
from mq.http2.status import Status
from mq.logging import get_logger
from mq.rpc import listeners
from mq.wire.v1 import status_pb2

log = get_logger(__name__)

CODE_KEY, STATUS_KEY = "mq-code", "mq-status-bin"
# How long a producer waits before it tries again when the broker is overloaded.
RETRY_AFTER_MS = 50
# It is sent twice as metadata, once percent-encoded, and clients accept 8 KiB of metadata.
TEXT_BYTES_MAX = 1_500

_S = Status
GRPC_CODES = {
    Code.OUTCOME_UNKNOWN: _S.DEADLINE_EXCEEDED,
    Code.FLUSH_TIMEOUT: _S.DEADLINE_EXCEEDED,
    Code.REPLICATION_TIMEOUT: _S.DEADLINE_EXCEEDED,
    Code.NOT_LEADER: _S.UNAVAILABLE,
    Code.FLOW_CONTROL: _S.RESOURCE_EXHAUSTED,
    Code.DISK_FULL: _S.RESOURCE_EXHAUSTED,
    Code.NODE_STOPPED: _S.UNAVAILABLE,
    Code.REBALANCING: _S.UNAVAILABLE,
    Code.MESSAGES_DAMAGED: _S.UNAVAILABLE,
    Code.REBUILDING: _S.UNAVAILABLE,
    Code.ILLEGAL_REQUEST: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_TOPIC: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_GROUP: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_FILTER: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_OFFSET: _S.OUT_OF_RANGE,
    Code.ILLEGAL_SEQUENCE: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_DELAY: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_HANDLE: _S.FAILED_PRECONDITION,
    Code.ILLEGAL_CONFIG: _S.INVALID_ARGUMENT,
    Code.ILLEGAL_MEMBERSHIP: _S.FAILED_PRECONDITION,
    Code.MALFORMED_BATCH: _S.INVALID_ARGUMENT,
    Code.MESSAGE_TOO_LARGE: _S.INVALID_ARGUMENT,
    Code.PERMISSION_DENIED: _S.PERMISSION_DENIED,
    Code.UNAUTHENTICATED: _S.UNAUTHENTICATED,
    Code.ILLEGAL_POLICY: _S.INVALID_ARGUMENT,
    Code.QUOTA_EXCEEDED: _S.FAILED_PRECONDITION,
    Code.USER_NOT_FOUND: _S.NOT_FOUND,
    Code.TOPIC_NOT_FOUND: _S.NOT_FOUND,
    Code.QUEUE_NOT_FOUND: _S.NOT_FOUND,
    Code.GROUP_NOT_FOUND: _S.NOT_FOUND,
    Code.MESSAGE_NOT_FOUND: _S.NOT_FOUND,
    Code.TRANSACTION_NOT_FOUND: _S.NOT_FOUND,
    Code.TOPIC_EXISTS: _S.ALREADY_EXISTS,
    Code.GROUP_NOT_EMPTY: _S.FAILED_PRECONDITION,
    Code.SUBSCRIPTION_MISMATCH: _S.FAILED_PRECONDITION,
    Code.UNKNOWN_MEMBER: _S.FAILED_PRECONDITION,
    Code.NOT_ASSIGNED: _S.FAILED_PRECONDITION,
    Code.VERSION_MISMATCH: _S.ABORTED,
    Code.INTERNAL: _S.INTERNAL,
    Code.STORAGE_FAILED: _S.INTERNAL,
    Code.QUEUE_DAMAGED: _S.DATA_LOSS,
    Code.LOG_DAMAGED: _S.DATA_LOSS,
}


def wire_code(error: MqError) -> status_pb2.Code:
    """Codes that are not for clients become INTERNAL."""
    name = error.code.name if error.code in GRPC_CODES else Code.INTERNAL.name
    return cast(status_pb2.Code, status_pb2.Code.Value(name))


def wire_status(error: MqError) -> status_pb2.Status:
    if isinstance(error, NotLeader) and error.address:
        # The text names an address, too.
        error = NotLeader(error.leader, listeners.chosen(error.address, error.external or ""))
    return status_pb2.Status(
        code=wire_code(error),
        text=str(error).encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore"),
        leader_address=(error.address or "") if isinstance(error, NotLeader) else "",
        retry_after_ms=(error.retry_after_ms or RETRY_AFTER_MS)
        if isinstance(error, FlowControl)
        else 0,
    )


def details(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """The error details of another broker's refusal; None: the error is gRPC's own."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_KEY:
            with contextlib.suppress(DecodeError):
                return status_pb2.Status.FromString(value)
    return None


def known_error(error: BaseException) -> MqError:
    """The error as clients are told of it; an unexpected one is logged. The error loses its
    traceback.
    """
    known: MqError
    match error:
        case MqError():
            known = error
        case DecodeError():
            known = IllegalRequest(
                f"the bytes of the request are not the message it should be: {error}"
            )
        case _:
            log.error("a request failed by a mistake of the broker", exc_info=error)
            known = Internal("the broker made a mistake; its log says more")
    _forget_frames(error)
    return known


def _forget_frames(error: BaseException) -> None:
    """grpcio keeps the exception that ends a call in a cycle with the call: the objects in the
    frames of its traceback, such as the request, would live until the garbage collector runs, which
    is seldom.
    """
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__context__


def aborted(known: MqError) -> CallAborted:
    """Ends the call, with the details as metadata."""
    status = wire_status(known)
    metadata = (
        (CODE_KEY, status_pb2.Code.Name(status.code)),
        (STATUS_KEY, status.SerializeToString()),
    )
    return CallAborted(GRPC_CODES.get(known.code, Status.INTERNAL), status.text, metadata)
