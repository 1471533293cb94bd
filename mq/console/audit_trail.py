"""The audit trail, newest first: records of %SYS%AUDIT, a bounded number a page.

Each broker set keeps a trail of its own. A page begins at an offset of each, and looks at
`LOOKED_MAX` records before it, wanted or not; so a page may be empty and have an older one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mq import names
from mq.client.aio import Admin
from mq.client.decode import decompressed
from mq.errors import IllegalRequest, TopicNotFound
from mq.wire.v1.admin_pb2 import StoredMessage

TOPIC = names.AUDIT_TOPIC
LOOKED_MAX = 500
# What has a column of its own.
_SHOWN = {"at_ms", "user", "credential", "address", "what", "subject", "before", "after", "outcome"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Empty: of all."""

    user: str = ""
    about: str = ""
    what: str = ""

    def has(self, record: dict[str, Any]) -> bool:
        return (
            self.user in ("", str(record.get("user", "")))
            and self.about in ("", str(record.get("subject", "")))
            and self.what in ("", str(record.get("what", "")))
        )


@dataclass(frozen=True, slots=True)
class Record:
    broker_set: str
    at_ms: int
    user: str
    address: str
    what: str
    subject: str
    change: str
    is_refusal: bool


@dataclass(frozen=True, slots=True)
class Page:
    records: list[Record]
    # Where older ones are; empty: there are none.
    older: str
    looked_at: int
    kinds: list[str]


async def read_page(admin: Admin, wanted: Wanted, at: str) -> Page:
    """IllegalRequest: `at` is no place; PermissionDenied."""
    try:
        described = await admin.describe_topic(TOPIC)
    except TopicNotFound:
        return Page([], "", 0, [])
    places = _parse(at) if at else {}
    found: list[tuple[str, StoredMessage]] = []
    older: dict[str, int] = {}
    for queue in described.queues:
        end = min(places.get(queue.broker_set, queue.end), queue.end)
        start = max(queue.start, end - LOOKED_MAX)
        found += [
            (queue.broker_set, one)
            for one in await _read(admin, queue.broker_set, queue.queue_id, start, end)
        ]
        older[queue.broker_set] = start
    is_more = any(older[one.broker_set] > one.start for one in described.queues)
    records = [(name, one, _parsed(one)) for name, one in found]
    shown = [
        _record(name, one, record)
        for name, one, record in records
        if record is not None and wanted.has(record)
    ]
    return Page(
        sorted(shown, key=lambda one: -one.at_ms),
        json.dumps(older, separators=(",", ":")) if is_more else "",
        len(found),
        sorted({str(record.get("what", "")) for _, _, record in records if record} - {""}),
    )


async def _read(
    admin: Admin, broker_set: str, queue_id: int, start: int, end: int
) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while start < end:
        answer = await admin.browse_messages(
            TOPIC, queue_id, start, end - start, broker_set=broker_set
        )
        found += [one for one in answer.messages if one.queue_offset < end]
        if answer.next_offset <= start:
            break
        start = answer.next_offset
    return found


def _parse(at: str) -> dict[str, int]:
    try:
        found = json.loads(at[:4096])
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(one) is int for one in found.values()):
        raise IllegalRequest("at is no place of the trail: follow the link of the page before")
    return found


def _parsed(stored: StoredMessage) -> dict[str, Any] | None:
    body = decompressed(stored.message.body, stored.message.compression)
    try:
        record = json.loads(body) if isinstance(body, bytes) else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _record(broker_set: str, stored: StoredMessage, record: dict[str, Any]) -> Record:
    at_ms = record.get("at_ms")
    what = str(record.get("what", ""))
    outcome = str(record.get("outcome") or "done")
    return Record(
        broker_set,
        at_ms if isinstance(at_ms, int) else stored.stored_at_ms,
        str(record.get("user") or ""),
        str(record.get("address") or ""),
        what,
        str(record.get("subject") or ""),
        _change(record),
        what == "denied" or outcome not in ("done", ""),
    )


def _change(record: dict[str, Any]) -> str:
    """The differences between before and after, or the reason of a refusal."""
    before, after = record.get("before"), record.get("after")
    parts = []
    if isinstance(before, dict) or isinstance(after, dict):
        old, new = before or {}, after or {}
        parts += [
            f"{key}: {_value(old.get(key))} → {_value(new.get(key))}"
            if old and new
            else f"{key}: {_value({**old, **new}[key])}"
            for key in {**old, **new}
            if key != "created_at_ms" and old.get(key) != new.get(key)
        ]
    elif before is not None or after is not None:
        parts.append(f"{_value(before)} → {_value(after)}")
    parts += [f"{key}: {_value(one)}" for key, one in record.items() if key not in _SHOWN and one]
    return ", ".join(parts)


def _value(value: Any) -> str:
    if value in (None, [], {}, ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:200]
