"""The words for what happens to a message, for people who read a trace: command line and console.

Words of a producer, a consumer or an operator go through `clean` before they are part of a text,
and times through `moment`: a terminal and a page differ in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mq.wire.v1.admin_pb2 import TraceEvent, TraceGroup, TraceKind, TraceStanding

_MEMBER_SHOWN, _PRODUCER_SHOWN = 40, 15

_TEXTS = {
    "born": "born{by}",
    "stored": "stored",
    "delayed": "stored, to be delivered at {until}",
    "delivered": "its time has come: delivered",
    "recalled": "taken back",
    "carried": "written again before retention",
    "half": "stored as a half message",
    "checked": "asked what became of it, question {attempt}; next at {until}",
    "committed": "committed: on its topic",
    "rolled_back": "rolled back",
    "given_up": "given up: no word came in time",
    "passed": "passed{by}",
    "skipped": "skipped by filter{filter}",
    "received": "received{by}, attempt {attempt}, lease until {until}",
    "extended": "lease extended until {until}",
    "lease_expired": "lease of attempt {attempt} expired",
    "returned": "given back: its receiver had gone",
    "nacked": "refused{by}, attempt {attempt}; visible again at {until}",
    "acknowledged": "acknowledged{by}, attempt {attempt}",
    "postponed": "waits for an earlier message of its key",
    "retry": "attempt {attempt} failed{by}, again at {until}",
    "redelivered": "attempt {attempt}",
    "dead_letter": "dead letter after {attempts}{by}",
    "resent": "dead letter sent again",
    "purged": "dead letter purged",
    "group_moved": "the group was set back to before it{by}",
    "group_deleted": "the group was deleted",
    "topic_deleted": "the topic was deleted",
    "dropped": "dropped: its topic is gone",
    "began_behind": "the group began behind it",
}
# They say where it stands from then on.
_MOVES = frozenset(
    [
        "stored",
        "delayed",
        "delivered",
        "carried",
        "half",
        "committed",
        "given_up",
        "redelivered",
        "dead_letter",
        "resent",
    ]
)


class Told(NamedTuple):
    """An event: what happened, by whose hand and where the message stands from then on; and the
    reason that was given.
    """

    text: str
    reason: str


def told(event: TraceEvent, clean: Callable[[str], str], moment: Callable[[int], str]) -> Told:
    kind = TraceKind.Name(event.kind).removeprefix("TRACE_").lower()
    text = _TEXTS.get(kind, kind.replace("_", " ")).format(
        attempt=event.attempt,
        attempts=f"{event.attempt} attempt{'' if event.attempt == 1 else 's'}",
        until=moment(event.until_ms) if event.until_ms else "once",
        filter=f" {clean(event.filter)}" if event.filter else "",
        by=_by(event, clean),
    )
    where = _where(event) if kind in _MOVES else ""
    return Told(f"{text}, {where}" if where else text, clean(event.reason))


def standing(one: TraceGroup) -> str:
    """Where the message stands with a group."""
    kind = TraceStanding.Name(one.standing).removeprefix("STANDING_").lower()
    if kind == "not_reached":
        if one.position < 0:
            return "has not begun with its queue"
        noun = "message" if one.behind == 1 else "messages"
        before = f"{one.behind:,} {noun} before it" if one.behind else "is the next one"
        return f"not reached: at {one.position}, {before}"
    if kind == "leased":
        return f"in the hands of a receiver, attempt {one.attempts}"
    if kind == "waiting":
        return "waits for its next delivery"
    return kind.replace("_", " ")


def _where(event: TraceEvent) -> str:
    place = f"entry {event.raft_index} in term {event.term}"
    if event.queue_offset >= 0:
        place = f"{event.topic} queue {event.queue_id} offset {event.queue_offset}, {place}"
    return place


def _by(event: TraceEvent, clean: Callable[[str], str]) -> str:
    """The member, or the producer; otherwise the user; and from where."""
    name = _short(clean(event.member_id), _MEMBER_SHOWN)
    name = name or _short(clean(event.producer_id), _PRODUCER_SHOWN)
    user = f"user {event.user}" if event.user else ""
    details = filter(None, (user, _address(event.address)))
    shown = ", ".join(map(clean, details))
    if not name:
        return f" by {shown}" if shown else ""
    return f" by {name} ({shown})" if shown else f" by {name}"


def _address(peer: str) -> str:
    """Without the kind of it: ipv4:127.0.0.1:50000."""
    kind, _, address = peer.partition(":")
    return address if kind in ("ipv4", "ipv6") else peer


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 3]}..."
