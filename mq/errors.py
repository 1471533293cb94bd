"""Every error a caller can meet, each with a stable code and whether a retry can help.

Transports turn `code` into their own status by one table; nobody matches on the text. A text says
what happened, where, and what to do. Expected empty results (end of a queue, an offset out of
range) are values, not errors.
"""

from __future__ import annotations

import enum


class Code(enum.Enum):
    """Names that clients and operators see; they never change their meaning."""

    ILLEGAL_CONFIG = "ILLEGAL_CONFIG"
    ILLEGAL_TOPIC = "ILLEGAL_TOPIC"
    MALFORMED_BATCH = "MALFORMED_BATCH"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    MESSAGE_NOT_FOUND = "MESSAGE_NOT_FOUND"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    SEGMENT_FULL = "SEGMENT_FULL"
    DISK_FULL = "DISK_FULL"
    STORAGE_FAILED = "STORAGE_FAILED"
    LOG_DAMAGED = "LOG_DAMAGED"
    QUEUE_DAMAGED = "QUEUE_DAMAGED"
    WRONG_DATA_DIRECTORY = "WRONG_DATA_DIRECTORY"
    DATA_DIRECTORY_IN_USE = "DATA_DIRECTORY_IN_USE"


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
    """Nothing was written. Reads go on; writing resumes by itself when there is room."""

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


class QueueDamaged(MqError):
    """A derived file is not what was written; the log is not concerned."""

    code = Code.QUEUE_DAMAGED


class WrongDataDirectory(MqError):
    code = Code.WRONG_DATA_DIRECTORY


class DataDirectoryInUse(MqError):
    code = Code.DATA_DIRECTORY_IN_USE
