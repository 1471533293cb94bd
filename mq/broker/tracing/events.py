"""The steps of a message's life, as values: what happened, when, to which copy, by whom."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from mq.broker.attribution import NOBODY, Actor
from mq.broker.queue import Queue


class EventKind(IntEnum):
    """The numbers are those of `TraceKind` on the wire."""

    BORN = 1
    STORED = 2
    DELAYED = 3
    DELIVERED = 4
    RECALLED = 5
    CARRIED = 6
    HALF = 7
    CHECKED = 8
    COMMITTED = 9
    ROLLED_BACK = 10
    GIVEN_UP = 11
    PASSED = 12
    SKIPPED = 13
    RECEIVED = 14
    EXTENDED = 15
    LEASE_EXPIRED = 16
    RETURNED = 17
    NACKED = 18
    ACKNOWLEDGED = 19
    POSTPONED = 20
    RETRY = 21
    REDELIVERED = 22
    DEAD_LETTER = 23
    RESENT = 24
    PURGED = 25
    GROUP_MOVED = 26
    GROUP_DELETED = 27
    TOPIC_DELETED = 28
    DROPPED = 29
    BEGAN_BEHIND = 30


class Standing(IntEnum):
    """The numbers are those of `TraceStanding` on the wire."""

    NOT_REACHED = 0
    PASSED = 1
    SKIPPED = 2
    LEASED = 3
    WAITING = 4
    ACKNOWLEDGED = 5
    DEAD_LETTER = 6
    BEGAN_BEHIND = 7


class Copy(NamedTuple):
    """A place of the message in the log, and in a queue if it is in one."""

    queue: Queue
    log_offset: int
    queue_offset: int = -1


class Event(NamedTuple):
    kind: EventKind
    at_ms: int
    copy: Copy
    group: str = ""
    actor: Actor = NOBODY
    # Of the entry that says so; 0: it follows from others.
    raft_index: int = 0
    term: int = 0
    attempt: int = 0
    until_ms: int = 0
    filter: str = ""
    reason: str = ""


class GroupSummary(NamedTuple):
    """Where the message stands with a group."""

    group: str
    standing: Standing
    queue: Queue
    # -1: none yet.
    position: int
    behind: int
    attempts: int
