"""Delayed messages: when they are due, which they are, and taking one back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq import names
from mq.access.policies import Action, Kind
from mq.console import formats
from mq.console.callers import Caller
from mq.console.confirming import confirmation, require
from mq.console.gate import caller_of, form_of
from mq.console.pages import NavigationEntry, redirect, render
from mq.console.times import parse_ms
from mq.errors import IllegalRequest, PermissionDenied
from mq.wire.v1.admin_pb2 import CountScheduledResponse, ScheduledMessage

NAVIGATION = NavigationEntry("Delayed", "/scheduled")

_PAGE = 50
_BUCKETS = 60
# Of the drawing, in its own units.
_WIDTH, _HEIGHT = 600.0, 100.0
_GAP = 1.0


@dataclass(frozen=True, slots=True)
class Bar:
    begin_ms: int
    end_ms: int
    count: int
    x: float
    y: float
    width: float
    height: float


def bars(counts: CountScheduledResponse) -> list[Bar]:
    """The histogram, drawn: all of the time from the first bucket to the last."""
    if not counts.buckets:
        return []
    step = counts.bucket_ms
    first = counts.buckets[0].begin_ms
    places = (counts.buckets[-1].begin_ms - first) // step + 1
    most = max(one.count for one in counts.buckets)
    width = _WIDTH / max(places, 12)
    found = []
    for one in counts.buckets:
        height = max(2.0, _HEIGHT * one.count / most)
        x = (one.begin_ms - first) // step * width
        found.append(
            Bar(
                one.begin_ms,
                one.begin_ms + step,
                one.count,
                round(x, 2),
                round(_HEIGHT - height, 2),
                round(max(width - _GAP, 0.5), 2),
                round(height, 2),
            )
        )
    return found


def is_retry(topic: str) -> bool:
    return topic.startswith(names.RETRY_PREFIX)


async def show(request: Request) -> Response:
    caller, query = caller_of(request), request.query_params
    topic, begin = query.get("topic", "").strip(), query.get("from", "").strip()
    begin_ms = parse_ms(begin) if begin else 0
    listed = await caller.admin.list_scheduled(topic, begin_ms, _PAGE, page=query.get("at", ""))
    counts = await _counts(caller)
    words = ["message", "scheduled", *([topic] if topic else [])]
    return render(
        request,
        "scheduled.html",
        title="Delayed",
        listed=listed,
        counts=counts,
        bars=bars(counts) if counts is not None else [],
        topic=topic,
        begin=begin,
        is_retry=is_retry,
        may_recall=await _recallable(caller, listed.messages),
        words=[*words, *(["--from", str(begin_ms)] if begin else [])],
    )


async def _counts(caller: Caller) -> CountScheduledResponse | None:
    """None: the caller may not see the cluster."""
    try:
        return await caller.admin.count_scheduled(_BUCKETS)
    except PermissionDenied:
        return None


async def _recallable(caller: Caller, messages: Iterable[ScheduledMessage]) -> set[str]:
    """The topics of the page whose messages this caller may take back."""
    topics = {one.topic for one in messages if not names.is_internal_topic(one.topic)}
    return {one for one in topics if await caller.may(Action.ALTER, Kind.TOPIC, one)}


async def recall(request: Request) -> Response:
    caller, form = caller_of(request), form_of(request)
    topic, message_id = form.get("topic"), form.get("message_id")
    due = form.get("deliver_at_ms")
    if not (due.isascii() and due.isdecimal() and 11 <= len(due) <= 15):
        raise IllegalRequest(f"deliver_at_ms {due[:50]!r} is no time")
    await require(caller, (Action.ALTER, Kind.TOPIC, topic))
    asked = confirmation(
        request,
        title=f"Take back {message_id}",
        sentences=[
            f"It waits for topic {topic} until {formats.utc(parse_ms(due))} UTC.",
            "It will not be delivered; to put it back, its producer has to send it again.",
        ],
        button="Take it back",
        back="/scheduled",
        command=formats.command(
            "message", "recall", topic, message_id, "--deliver-at", due, "--operator"
        ),
    )
    if asked is not None:
        return asked
    await caller.admin.recall_scheduled(topic, message_id, int(due))
    return redirect("/scheduled", "recalled")


ROUTES = [
    Route("/scheduled", show),
    Route("/scheduled/recall", recall, methods=["POST"]),
]
