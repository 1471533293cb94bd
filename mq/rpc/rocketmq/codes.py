"""Errors in the codes of RocketMQ, inside of answers: the call itself is OK."""

from __future__ import annotations

from mq.errors import Code as Own
from mq.errors import NotLeader
from mq.rpc.status import TEXT_BYTES_MAX, known_error
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq.definition_pb2 import Code

OK = pb.Status(code=Code.OK, message="OK")

CODES = {
    Own.OUTCOME_UNKNOWN: Code.SLAVE_PERSISTENCE_TIMEOUT,
    Own.FLUSH_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    Own.REPLICATION_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    Own.NOT_LEADER: Code.HA_NOT_AVAILABLE,
    Own.NODE_STOPPED: Code.HA_NOT_AVAILABLE,
    Own.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    Own.QUOTA_EXCEEDED: Code.TOO_MANY_REQUESTS,
    Own.DISK_FULL: Code.TOO_MANY_REQUESTS,
    Own.ILLEGAL_REQUEST: Code.BAD_REQUEST,
    Own.ILLEGAL_TOPIC: Code.ILLEGAL_TOPIC,
    Own.ILLEGAL_GROUP: Code.ILLEGAL_CONSUMER_GROUP,
    Own.ILLEGAL_FILTER: Code.ILLEGAL_FILTER_EXPRESSION,
    Own.SUBSCRIPTION_MISMATCH: Code.ILLEGAL_FILTER_EXPRESSION,
    Own.ILLEGAL_OFFSET: Code.ILLEGAL_OFFSET,
    Own.ILLEGAL_DELAY: Code.ILLEGAL_DELIVERY_TIME,
    Own.ILLEGAL_HANDLE: Code.INVALID_RECEIPT_HANDLE,
    Own.MALFORMED_BATCH: Code.BAD_REQUEST,
    Own.MESSAGE_TOO_LARGE: Code.MESSAGE_BODY_TOO_LARGE,
    Own.PERMISSION_DENIED: Code.FORBIDDEN,
    Own.UNAUTHENTICATED: Code.UNAUTHORIZED,
    Own.TOPIC_NOT_FOUND: Code.TOPIC_NOT_FOUND,
    Own.QUEUE_NOT_FOUND: Code.TOPIC_NOT_FOUND,
    Own.GROUP_NOT_FOUND: Code.CONSUMER_GROUP_NOT_FOUND,
    # Not MESSAGE_NOT_FOUND, which some clients take for success.
    Own.MESSAGE_NOT_FOUND: Code.NOT_FOUND,
    Own.TRANSACTION_NOT_FOUND: Code.INVALID_TRANSACTION_ID,
}


class Refused(Exception):
    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_of(error: BaseException) -> pb.Status:
    """The error as clients are told of it; an unexpected one is logged."""
    if isinstance(error, Refused):
        return pb.Status(code=error.code, message=_short(str(error)))
    known = known_error(error)
    code = CODES.get(known.code, Code.INTERNAL_SERVER_ERROR)
    if isinstance(known, NotLeader):
        # Clients cannot choose: the address of the leader is no use to them.
        return pb.Status(code=code, message="the broker set has no leader at the moment")
    return pb.Status(code=code, message=_short(str(known)))


def _short(text: str) -> str:
    return text.encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")
