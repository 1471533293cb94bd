"""The trace of a message: what became of it, by the log, for a message id or a key."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq import trace_text
from mq.console.callers import Caller
from mq.console.gate import caller_of
from mq.console.pages import NavigationEntry, redirect, render
from mq.errors import IllegalRequest, MessageNotFound
from mq.wire.v1.admin_pb2 import StoredMessage, TraceEvent, TraceKind, TraceStanding

NAVIGATION = NavigationEntry("Trace", "/trace")

_BUDGET_S = 2.0
# Where a time stands in a text: none of the characters that people write.
_TIME = "\x1f"
# What an event means for the message, as a colour beside the words.
_LEVELS = {
    "good": {"acknowledged", "passed", "committed", "delivered"},
    "warn": {"retry", "nacked", "lease_expired", "checked", "postponed", "returned", "group_moved"},
    "bad": {"dead_letter", "given_up", "rolled_back", "dropped", "purged", "topic_deleted"},
}
_STANDINGS = {"passed": "good", "acknowledged": "good", "dead_letter": "bad"}


async def show(request: Request) -> Response:
    """Asks for an id, or a topic and a key; shows the trace, or the messages to choose from."""
    caller, query = caller_of(request), request.query_params
    message_id = query.get("id", "").strip()
    topic, key = query.get("topic", "").strip(), query.get("key", "").strip()
    values: dict[str, Any] = {"message_id": message_id, "topic": topic, "key": key}
    if not message_id and key:
        found = await _with_key(caller, topic, key)
        if len(found) == 1:
            return redirect(f"/trace?id={quote(found[0].message_id, safe='')}")
        return render(request, "trace.html", title="Trace", trace=None, found=found, **values)
    if not message_id:
        return render(request, "trace.html", title="Trace", trace=None, found=(), **values)
    trace = await caller.admin.trace_message(
        message_id, budget_s=_BUDGET_S, continue_token=_token(query.get("token", ""))
    )
    return render(
        request,
        "trace.html",
        title=f"Trace of {trace.message_id}",
        trace=trace,
        found=(),
        steps=[_step(one) for one in trace.events],
        standings=[
            (one.group, trace_text.standing(one), _STANDINGS.get(_standing(one.standing), "warn"))
            for one in trace.groups
        ],
        **values,
    )


async def _with_key(caller: Caller, topic: str, key: str) -> list[StoredMessage]:
    if not topic:
        raise IllegalRequest("a key is looked up in a topic: give its name too")
    found = await caller.admin.query_messages(topic, key)
    if not found:
        raise MessageNotFound(f"no message of {topic} has the key {key}")
    return list(found)


def _token(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64 else 0


class Step(NamedTuple):
    """An event in words. `until_ms` stands between `before` and `after`, as a time of the page."""

    event: TraceEvent
    before: str
    until_ms: int
    after: str
    reason: str
    level: str


def _step(event: TraceEvent) -> Step:
    text, reason = trace_text.told(event, lambda said: said.replace(_TIME, ""), lambda _: _TIME)
    before, time, after = text.partition(_TIME)
    return Step(event, before, event.until_ms if time else 0, after, reason, _level(event))


def _level(event: TraceEvent) -> str:
    kind = TraceKind.Name(event.kind).removeprefix("TRACE_").lower()
    return next((level for level, kinds in _LEVELS.items() if kind in kinds), "plain")


def _standing(number: TraceStanding) -> str:
    return TraceStanding.Name(number).removeprefix("STANDING_").lower()


ROUTES = [Route("/trace", show)]
