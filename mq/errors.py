"""Every error a caller can meet, each with a stable code and whether a retry can help.

Transports turn `code` into their own status by one table; the text is never matched on. A text says
what happened, where, and what to do. Expected empty results (end of a queue, an offset out of
range) are values, not errors.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence


class Code(enum.Enum):
    """Names that clients and operators see; they never change their meaning."""

    ILLEGAL_CONFIG = "ILLEGAL_CONFIG"
    ILLEGAL_TOPIC = "ILLEGAL_TOPIC"
    MALFORMED_BATCH = "MALFORMED_BATCH"
    MALFORMED_ENTRIES = "MALFORMED_ENTRIES"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    MESSAGE_NOT_FOUND = "MESSAGE_NOT_FOUND"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    SEGMENT_FULL = "SEGMENT_FULL"
    DISK_FULL = "DISK_FULL"
    STORAGE_FAILED = "STORAGE_FAILED"
    LOG_DAMAGED = "LOG_DAMAGED"
    MESSAGES_DAMAGED = "MESSAGES_DAMAGED"
    QUEUE_DAMAGED = "QUEUE_DAMAGED"
    WRONG_DATA_DIRECTORY = "WRONG_DATA_DIRECTORY"
    DATA_DIRECTORY_IN_USE = "DATA_DIRECTORY_IN_USE"
    NOT_LEADER = "NOT_LEADER"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    FLUSH_TIMEOUT = "FLUSH_TIMEOUT"
    REPLICATION_TIMEOUT = "REPLICATION_TIMEOUT"
    FLOW_CONTROL = "FLOW_CONTROL"
    ILLEGAL_MEMBERSHIP = "ILLEGAL_MEMBERSHIP"
    NODE_STOPPED = "NODE_STOPPED"
    PORT_UNAVAILABLE = "PORT_UNAVAILABLE"
    REBALANCING = "REBALANCING"
    REBUILDING = "REBUILDING"
    ILLEGAL_REQUEST = "ILLEGAL_REQUEST"
    ILLEGAL_GROUP = "ILLEGAL_GROUP"
    ILLEGAL_FILTER = "ILLEGAL_FILTER"
    ILLEGAL_OFFSET = "ILLEGAL_OFFSET"
    ILLEGAL_SEQUENCE = "ILLEGAL_SEQUENCE"
    ILLEGAL_DELAY = "ILLEGAL_DELAY"
    ILLEGAL_HANDLE = "ILLEGAL_HANDLE"
    TRANSACTION_NOT_FOUND = "TRANSACTION_NOT_FOUND"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    ILLEGAL_POLICY = "ILLEGAL_POLICY"
    USER_NOT_FOUND = "USER_NOT_FOUND"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    GROUP_NOT_FOUND = "GROUP_NOT_FOUND"
    TOPIC_EXISTS = "TOPIC_EXISTS"
    GROUP_NOT_EMPTY = "GROUP_NOT_EMPTY"
    SUBSCRIPTION_MISMATCH = "SUBSCRIPTION_MISMATCH"
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
    NOT_ASSIGNED = "NOT_ASSIGNED"
    VERSION_MISMATCH = "VERSION_MISMATCH"
    INTERNAL = "INTERNAL"
    UNREACHABLE = "UNREACHABLE"
    NO_LEADER = "NO_LEADER"
    CLIENT_CLOSED = "CLIENT_CLOSED"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    REQUEST_FAILED = "REQUEST_FAILED"


class MqError(Exception):
    """Base of all our errors. `retryable`: the same call may succeed later without a change by the
    caller.
    """

    code: Code
    retryable = False


class IllegalConfig(MqError):
    code = Code.ILLEGAL_CONFIG


class IllegalTopic(MqError):
    code = Code.ILLEGAL_TOPIC


class MalformedBatch(MqError):
    code = Code.MALFORMED_BATCH


class MalformedEntries(MqError):
    """Bytes from another node are not the entries that follow here; nothing was written."""

    code = Code.MALFORMED_ENTRIES


class MessageTooLarge(MqError):
    code = Code.MESSAGE_TOO_LARGE


class MessageNotFound(MqError):
    code = Code.MESSAGE_NOT_FOUND


class OffsetOutOfRange(MqError):
    """A raft index or log offset outside of the log."""

    code = Code.OFFSET_OUT_OF_RANGE


class SegmentFull(MqError):
    """The active segment has no room: apply what was appended, so that the store can roll, and try
    again.
    """

    code = Code.SEGMENT_FULL
    retryable = True


class DiskFull(MqError):
    """Nothing was written: no space on the disk, or no descriptor left to open a file with. Reads
    go on; writing resumes by itself when there is room.
    """

    code = Code.DISK_FULL
    retryable = True


class StorageFailed(MqError):
    """A write or sync failed in a way that leaves the files' content unknown: stop the node."""

    code = Code.STORAGE_FAILED


class LogDamaged(MqError):
    """Bytes that had been synced are not what was written."""

    code = Code.LOG_DAMAGED

    def __init__(self, path: str, position: int, reason: str, advice: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}. {advice}")
        self.path = path
        self.position = position
        self.reason = reason


class MessagesDamaged(LogDamaged):
    """An entry of a log that is in use; nothing of it is served. `[start, end)` are its log
    offsets. A retry helps as soon as the node has mended it, from another node.
    """

    code = Code.MESSAGES_DAMAGED
    retryable = True

    def __init__(
        self, path: str, position: int, reason: str, start: int, end: int, *, is_lost: bool
    ) -> None:
        """`is_lost`: no other node has it, so that it is passed over."""
        advice = (
            "No other node has it: what it held is lost"
            if is_lost
            else "The node mends it from another node of its set; ask again, or ask another node"
        )
        super().__init__(path, position, reason, advice)
        self.start = start
        self.end = end
        self.is_lost = is_lost


class QueueDamaged(MqError):
    """A derived file is not what was written; the log is not concerned."""

    code = Code.QUEUE_DAMAGED


class Rebuilding(MqError):
    """A derived file is just being rebuilt from the log: ask again in a moment."""

    code = Code.REBUILDING
    retryable = True


class WrongDataDirectory(MqError):
    code = Code.WRONG_DATA_DIRECTORY


class DataDirectoryInUse(MqError):
    code = Code.DATA_DIRECTORY_IN_USE


class NotLeader(MqError):
    """Nothing was written: this node does not lead its broker set. Ask the leader, when one is
    known.
    """

    code = Code.NOT_LEADER
    retryable = True

    def __init__(
        self, leader: str | None, address: str | None, external: str | None = None
    ) -> None:
        """Addresses are those for clients; `external` for those of the external listener."""
        where = f"{leader} does" if leader else "none is known at the moment"
        if leader and address:
            where = f"{leader} at {address} does"
        super().__init__(f"this node does not lead its broker set: {where}")
        self.leader = leader
        self.address = address
        self.external = external or address


class OutcomeUnknown(MqError):
    """The entry may or may not become part of the log: the leader changed before it was known."""

    code = Code.OUTCOME_UNKNOWN
    retryable = True


class FlowControl(MqError):
    """Nothing was written: too much is waiting already. Try again a little later."""

    code = Code.FLOW_CONTROL
    retryable = True

    def __init__(self, text: str = "", retry_after_ms: int = 0) -> None:
        """0: after a moment."""
        super().__init__(text)
        self.retry_after_ms = retry_after_ms


class IllegalMembership(MqError):
    """The change of members cannot be made, or not now."""

    code = Code.ILLEGAL_MEMBERSHIP


class NodeStopped(MqError):
    """Nothing was written: the node is stopping, or has stopped by a failure that is the cause."""

    code = Code.NODE_STOPPED
    retryable = True


class PortUnavailable(MqError):
    code = Code.PORT_UNAVAILABLE


class FlushTimeout(MqError):
    """Its outcome is not known: the leader's disk did not sync it in time."""

    code = Code.FLUSH_TIMEOUT
    retryable = True


class ReplicationTimeout(MqError):
    """Its outcome is not known: no majority of the broker set had it in time."""

    code = Code.REPLICATION_TIMEOUT
    retryable = True


class Rebalancing(MqError):
    """The group is just being arranged: ask again in a moment."""

    code = Code.REBALANCING
    retryable = True


class IllegalRequest(MqError):
    """A field of the request has a value that makes no sense; the text names it."""

    code = Code.ILLEGAL_REQUEST


class IllegalGroup(MqError):
    code = Code.ILLEGAL_GROUP


class IllegalFilter(MqError):
    code = Code.ILLEGAL_FILTER


class IllegalOffset(MqError):
    """A queue offset beyond the end of its queue."""

    code = Code.ILLEGAL_OFFSET


class IllegalSequence(MqError):
    """The batch cannot be placed among its producer's others; nothing was written."""

    code = Code.ILLEGAL_SEQUENCE


class IllegalDelay(MqError):
    """A delivery time too far ahead, or said in two ways."""

    code = Code.ILLEGAL_DELAY


class IllegalHandle(MqError):
    """Not the handle of a message that this group has in flight: forged, of another group, or
    expired and received by another consumer.
    """

    code = Code.ILLEGAL_HANDLE


class TransactionNotFound(MqError):
    """Never begun, or over by now."""

    code = Code.TRANSACTION_NOT_FOUND


class PermissionDenied(MqError):
    code = Code.PERMISSION_DENIED


class Unauthenticated(MqError):
    """No identity, or one that is not known, has expired or was revoked."""

    code = Code.UNAUTHENTICATED


class IllegalPolicy(MqError):
    code = Code.ILLEGAL_POLICY


class UserNotFound(MqError):
    code = Code.USER_NOT_FOUND


class QuotaExceeded(MqError):
    """A limit of what is stored or kept, not of a rate: waiting does not help."""

    code = Code.QUOTA_EXCEEDED


class TopicNotFound(MqError):
    code = Code.TOPIC_NOT_FOUND
    # The name that no topic has, if the text leaves room for a guess at what was meant.
    topic = ""


class QueueNotFound(MqError):
    code = Code.QUEUE_NOT_FOUND


class GroupNotFound(MqError):
    code = Code.GROUP_NOT_FOUND


class TopicExists(MqError):
    code = Code.TOPIC_EXISTS


class GroupNotEmpty(MqError):
    """The group has members, and what was asked needs one without."""

    code = Code.GROUP_NOT_EMPTY


class SubscriptionMismatch(MqError):
    """Another member of the group subscribes to something else; the text has both."""

    code = Code.SUBSCRIPTION_MISMATCH


class UnknownMember(MqError):
    """Never joined the group, or was away for too long: join again."""

    code = Code.UNKNOWN_MEMBER


class NotAssigned(MqError):
    """The queue belongs to another member of the group by now."""

    code = Code.NOT_ASSIGNED


class VersionMismatch(MqError):
    """Nothing was written: it was changed since it was read. Read it again, and decide anew."""

    code = Code.VERSION_MISMATCH


class Internal(MqError):
    """A mistake of the broker's; its log has the details."""

    code = Code.INTERNAL


class Unreachable(MqError):
    """No broker answered, or not in time; raised by clients."""

    code = Code.UNREACHABLE
    retryable = True


class NoLeader(Unreachable):
    """Some nodes of a broker set answer, and none of them leads; raised by clients. The set goes on
    by itself when a majority of its nodes is up.
    """

    code = Code.NO_LEADER

    def __init__(
        self,
        broker_set: str,
        up: Sequence[str],
        down: Mapping[str, str],
        unasked: Sequence[str] = (),
    ) -> None:
        """`up` are the nodes that answer, `down` those that do not, each with where and why not;
        of those that were not asked yet neither is known.
        """
        count = len(up) + len(down) + len(unasked)
        majority = count // 2 + 1
        text = f"{broker_set} has no leader: {len(up)} of {count} nodes up ({', '.join(up)})"
        if down:
            verb = "does" if len(down) == 1 else "do"
            text += f"; {', '.join(down)} {verb} not answer ({'; '.join(down.values())})"
        if unasked:
            text += f"; {', '.join(unasked)} {'was' if len(unasked) == 1 else 'were'} not asked yet"
        missing = majority - len(up)
        if missing > len(unasked):
            advice = f"A leader needs {majority} of {count}: start {missing} more of them"
        elif missing > 0:
            advice = f"A leader needs {majority} of {count}"
        else:
            advice = "None has been elected yet: do the nodes reach each other's Raft addresses?"
        super().__init__(f"{text}. {advice}")
        self.broker_set = broker_set


class ClientClosed(MqError, RuntimeError):
    """The client was closed, by the program itself; raised by clients. Make another one."""

    code = Code.CLIENT_CLOSED


class RequestTimeout(MqError):
    """No reply came in time; raised by clients. The request may be worked on all the same."""

    code = Code.REQUEST_TIMEOUT


class RequestFailed(MqError):
    """The replier could not do what was asked, and says why; raised by clients."""

    code = Code.REQUEST_FAILED
