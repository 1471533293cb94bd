"""Failures that come over the wire, as the errors of `mq.errors`, and what a producer does about
each.

One table from the broker's codes to our classes; a code that this client does not know yet becomes
an Internal that names it. Failures of the connection itself carry no code of ours: Unreachable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mq import errors
from mq.errors import (
    Internal,
    MqError,
    NoLeader,
    NotLeader,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
    Unreachable,
)
from mq.wire.v1 import status_pb2

E = TypeVar("E", bound=MqError)

_STATUS_KEY = "mq-status-bin"
_CLASSES: dict[str, type[MqError]] = {
    one.code.name: one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, MqError) and one is not MqError
}


# The client is not who it says, may not do this, or has as much as it may have. Another attempt is
# useless until an operator changes that, or the client has another key.
REFUSALS = (Unauthenticated, PermissionDenied, QuotaExceeded)


class WrongTransport(Unreachable):
    """The client speaks TLS and the broker does not, or the reverse: another attempt is useless."""

    retryable = False


def error_of(code: int, text: str, leader_address: str = "", retry_after_ms: int = 0) -> MqError:
    """The error for a code of status.proto. `retry_after_s` reads what it says of waiting."""
    if code == status_pb2.NOT_LEADER:
        error: MqError = NotLeader(None, leader_address or None)
        error.args = (text,) if text else error.args
        return error
    names = status_pb2.Code.DESCRIPTOR.values_by_number
    name = names[code].name if code in names else str(code)
    kind = _CLASSES.get(name, Internal)
    # Some classes build their text from parts that do not come over the wire.
    error = kind.__new__(kind)
    error.args = (text if kind is not Internal else f"{name}: {text}",)
    if retry_after_ms:
        error.retry_after_ms = retry_after_ms  # type: ignore[attr-defined]
    return error


class ResultAction(enum.Enum):
    """The action of a producer for a result code. A retry counts against `retries` if only luck
    makes the next attempt better. It does not count after a redirect to the leader or a retry-after
    of the broker: a fail-over leaves a set without a leader for a second, and a busy broker asks to
    wait; only the time-out ends these retries.
    """

    STORED = enum.auto()
    FOLLOW = enum.auto()  # retry at the leader
    WAIT = enum.auto()  # retry after the pause that the broker asked for
    RETRY = enum.auto()  # retry, in another queue if it may; counts against `retries`
    REROUTE = enum.auto()  # refresh the route of the topic, once per set
    RENUMBER = enum.auto()  # retry under another producer id
    FAIL = enum.auto()


_ACTIONS = {
    status_pb2.SEND_OK: ResultAction.STORED,
    status_pb2.OUTCOME_UNKNOWN: ResultAction.RETRY,
    status_pb2.FLUSH_TIMEOUT: ResultAction.RETRY,
    status_pb2.REPLICATION_TIMEOUT: ResultAction.RETRY,
    status_pb2.DISK_FULL: ResultAction.RETRY,
    status_pb2.NOT_LEADER: ResultAction.FOLLOW,
    status_pb2.NODE_STOPPED: ResultAction.FOLLOW,
    status_pb2.FLOW_CONTROL: ResultAction.WAIT,
    status_pb2.TOPIC_NOT_FOUND: ResultAction.REROUTE,
    status_pb2.QUEUE_NOT_FOUND: ResultAction.REROUTE,
    status_pb2.PERMISSION_DENIED: ResultAction.REROUTE,
    status_pb2.ILLEGAL_SEQUENCE: ResultAction.RENUMBER,
}
_IN_DOUBT = frozenset(
    {status_pb2.OUTCOME_UNKNOWN, status_pb2.FLUSH_TIMEOUT, status_pb2.REPLICATION_TIMEOUT}
)


def action_for(code: int) -> ResultAction:
    return _ACTIONS.get(code, ResultAction.FAIL)  # type: ignore[call-overload,no-any-return]


def is_in_doubt(code: int) -> bool:
    """Whether the batch may be stored in spite of the error."""
    return code in _IN_DOUBT


def fresh(error: E) -> E:
    """A copy of the error: raising one adds to its traceback, so that each caller gets its own."""
    kind = type(error)
    copy = kind.__new__(kind)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy


def reworded(error: E, text: str) -> E:
    """A copy of the error with another text."""
    copy = fresh(error)
    copy.args = (text,)
    return copy


def mistake(failure: Exception) -> Internal:
    """The error for a bug of this client."""
    return Internal(f"the client has failed: {failure!r}")


def unanswered(what: str, trouble: MqError | None, servers: Iterable[str]) -> Unreachable:
    """The error of a time-out: a missing leader, or why there is no stream."""
    if isinstance(trouble, NoLeader):
        return reworded(trouble, f"{what}: {trouble}")
    why = str(trouble) if trouble is not None else f"brokers: {', '.join(servers)}"
    return Unreachable(f"{what}: {why}")


def retry_after_s(error: MqError) -> float:
    """The wait that the broker asked for; 0 if it did not."""
    return float(getattr(error, "retry_after_ms", 0)) / 1000


def error_of_call(failure: grpc.aio.AioRpcError, address: str) -> MqError:
    """The error of a failed call: that of the broker, or Unreachable."""
    for key, value in failure.trailing_metadata() or ():
        if key == _STATUS_KEY:
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                break
            return error_of(status.code, status.text, status.leader_address, status.retry_after_ms)
    if kind := _REFUSAL_BY_STATUS.get(failure.code()):
        # By something between the client and the broker.
        return kind(f"{address}: {failure.details()}")
    if _SPEAKS_PLAINTEXT in (failure.details() or ""):
        return WrongTransport(f"the broker at {address} does not speak TLS: {_NO_TLS}")
    if failure.code() in _NOT_REACHED:
        return Unreachable(f"{address}: {reason_of(failure.code(), failure.details() or '')}")
    if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Internal(
            f"{address} does not know what it was asked for: it is no broker of mq, or one of an "
            f"older version ({failure.code().name}: {failure.details()})"
        )
    return Internal(f"{address} answered {failure.code().name}: {failure.details()}")


def closes_at_once(failure: grpc.aio.AioRpcError) -> bool:
    """Whether a broker has ended the connection before it said anything: one that wants TLS does
    that to a client without.
    """
    return _CLOSES_AT_ONCE in (failure.details() or "")


def closed_after_handshake(address: str, *, has_certificate: bool) -> Unreachable:
    """The error when a broker ends connections by TLS at once. By TLS 1.3 it judges the certificate
    of a client only when that takes the handshake to be done.
    """
    why = _OTHER_CERTIFICATE if has_certificate else _WANTS_CERTIFICATE
    return Unreachable(f"{address}: {why}; or it is stopping")


def reason_of(code: grpc.StatusCode, details: str) -> str:
    """Why there is no answer, in a few plain words, if gRPC's own are known; otherwise those."""
    for part, words in _REASONS:
        if part in details:
            return words
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return f"{code.name}, {details}"


_SPEAKS_PLAINTEXT = "WRONG_VERSION_NUMBER"
_NO_TLS = "leave out tls, ca and cert (--tls, --ca, --cert)"
_CLOSES_AT_ONCE = "failed to connect to all addresses; last error: UNAVAILABLE"
_CLIENT_PORT = "clients want the port of --port, 8081 by default"
_WANTS_TLS = "one that wants TLS (tls=True, --tls)"
_OTHER_NAME = "its certificate is for another host name or address: connect by one that it has"
_OTHER_AUTHORITY = (
    "its certificate does not come from an authority that this client trusts: name the right one "
    "by ca (--ca)"
)
_OTHER_CERTIFICATE = "it does not accept the certificate of this client (cert, --cert)"
_WANTS_CERTIFICATE = "it wants a certificate of this client: give cert and key (--cert, --key)"
# By a part of gRPC's text, the first that fits: why there is no connection.
_REASONS = (
    ("Connection refused", "connection refused"),
    ("Domain name not found", "no such host"),
    ("DNS resolution failed", "no such host"),
    ("No route to host", "no route to host"),
    ("Network is unreachable", "network is unreachable"),
    ("Connection timed out", "no connection in time"),
    # A GOAWAY, which brokers send first only to clients that speak no TLS where they must.
    ("got frame type 7)", "it requires TLS: use tls=True (--tls)"),
    ("Failed parsing HTTP/2", f"it does not speak gRPC, a metrics port perhaps: {_CLIENT_PORT}"),
    (
        "before receiving SETTINGS frame",
        f"it takes connections and says nothing: frozen, or no broker; {_CLIENT_PORT}",
    ),
    (_SPEAKS_PLAINTEXT, f"it does not speak TLS: {_NO_TLS}"),
    ("Hostname Verification Check failed", _OTHER_NAME),
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet: is a clock wrong?"),
    ("CERTIFICATE_VERIFY_FAILED", _OTHER_AUTHORITY),
    ("ALERT_CERTIFICATE_REQUIRED", _WANTS_CERTIFICATE),
    ("ALERT_UNKNOWN_CA", _OTHER_CERTIFICATE),
    (
        _CLOSES_AT_ONCE,
        f"it closes connections at once: stopping, a Raft port, or {_WANTS_TLS}; {_CLIENT_PORT}",
    ),
    ("Socket closed", "the connection was closed"),
    ("Connection reset by peer", "the connection was closed"),
)

_REFUSAL_BY_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}
_NOT_REACHED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        # By gRPC itself: it says so of every write that fails because the stream has ended, and
        # forgets what the broker said (grpc/grpc#36066). The broker's own comes with a status.
        grpc.StatusCode.INTERNAL,
    }
)
