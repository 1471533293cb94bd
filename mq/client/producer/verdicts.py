"""What a producer does with the answer to a batch. A table, so that one sees what is retried.

An answer counts against `retries` when trying again is a matter of luck. It does not count when the
broker says whom to ask or when: during a fail-over there is nobody for a second, and a broker that
is busy asks to wait; there, only the time runs out.
"""

from __future__ import annotations

import enum

from mq.wire.v1 import status_pb2 as wire


class Verdict(enum.Enum):
    STORED = enum.auto()
    FOLLOW = enum.auto()  # ask who leads now
    WAIT = enum.auto()  # the same again, when the broker said
    AGAIN = enum.auto()  # the same again, in another queue if it may; counts
    REROUTE = enum.auto()  # the topic is not what we think: ask for its route, once a set
    RENUMBER = enum.auto()  # under another producer id
    FAIL = enum.auto()


_VERDICTS = {
    wire.SEND_OK: Verdict.STORED,
    wire.OUTCOME_UNKNOWN: Verdict.AGAIN,
    wire.FLUSH_TIMEOUT: Verdict.AGAIN,
    wire.REPLICATION_TIMEOUT: Verdict.AGAIN,
    wire.DISK_FULL: Verdict.AGAIN,
    wire.NOT_LEADER: Verdict.FOLLOW,
    wire.NODE_STOPPED: Verdict.FOLLOW,
    wire.FLOW_CONTROL: Verdict.WAIT,
    wire.TOPIC_NOT_FOUND: Verdict.REROUTE,
    wire.QUEUE_NOT_FOUND: Verdict.REROUTE,
    wire.PERMISSION_DENIED: Verdict.REROUTE,
    wire.ILLEGAL_SEQUENCE: Verdict.RENUMBER,
}
_IN_DOUBT = frozenset({wire.OUTCOME_UNKNOWN, wire.FLUSH_TIMEOUT, wire.REPLICATION_TIMEOUT})


def verdict(code: int) -> Verdict:
    return _VERDICTS.get(code, Verdict.FAIL)  # type: ignore[call-overload,no-any-return]


def is_in_doubt(code: int) -> bool:
    """Whether the batch may be stored all the same."""
    return code in _IN_DOUBT
