"""Groups: all of them, from the last sample; one with its members, queues, leases and the wizard
that moves it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mq import names
from mq.access.policies import Action, Kind
from mq.client.messages import QueueRef
from mq.console.callers import Caller
from mq.console.confirming import confirmation, require
from mq.console.gate import caller_of, form_of
from mq.console.lags import TREND_SAMPLES, Trend, trend
from mq.console.pages import NavigationEntry, paged, redirect, render
from mq.console.times import parse_ms
from mq.errors import IllegalRequest, MqError, TopicNotFound, Unauthenticated
from mq.wire.v1.admin_pb2 import DescribeGroupResponse, GroupQueue, GroupSettings, GroupSummary
from mq.wire.v1.consumer_pb2 import ConsumeMode, Filter

NAVIGATION = NavigationEntry("Groups", "/groups")

_SPARK = 60
_SORTS = ("lag", "name", "members")
_LEASES = 50
_TARGETS = ("earliest", "latest", "time")


def mode_name(number: int) -> str:
    name: str = ConsumeMode.Name(number)
    return name.removeprefix("MODE_").lower()


def filter_text(chosen: Filter) -> str:
    if chosen.WhichOneof("kind") == "sql":
        return f"SQL: {chosen.sql}"
    return f"tags {chosen.tags}" if chosen.tags not in ("", "*") else "all messages"


def is_retry(topic: str) -> bool:
    return topic.startswith(names.RETRY_PREFIX)


# -- all -------------------------------------------------------------------------------------------


async def show_all(request: Request) -> Response:
    caller = caller_of(request)
    sample = await caller.sampler.first()
    if sample.error is not None and not sample.sets:
        raise sample.error
    wanted = request.query_params.get("q", "").strip()
    sort = request.query_params.get("sort", "lag")
    found = [one for one in sample.groups if _matches(one, wanted)]
    part = paged(request, _sorted(found, sort))
    history = caller.sampler.history
    return render(
        request,
        "groups.html",
        title="Groups",
        sample=sample,
        part=part,
        wanted=wanted,
        sort=sort if sort in _SORTS else "lag",
        mode_name=mode_name,
        spark=lambda group: history.last("lag", group, _SPARK),
        trend=lambda group: _trend(caller, group),
    )


def _matches(one: GroupSummary, wanted: str) -> bool:
    """Every word is part of its name, or of the name of a topic."""
    texts = [one.group.lower(), *(topic.lower() for topic in one.topics)]
    return all(any(word in text for text in texts) for word in wanted.lower().split())


def _sorted(found: list[GroupSummary], sort: str) -> list[GroupSummary]:
    if sort == "name":
        return found
    if sort == "members":
        return sorted(found, key=lambda one: -one.members)
    return sorted(found, key=lambda one: -one.lag)


def _trend(caller: Caller, group: str) -> Trend:
    lags = caller.sampler.history.last("lag", group, TREND_SAMPLES)
    return trend(lags, caller.sampler.period_s)


# -- one -------------------------------------------------------------------------------------------


async def show(request: Request) -> Response:
    caller, group = caller_of(request), request.path_params["group"]
    described = await caller.admin.describe_group(group)
    await caller.sampler.first()
    queues = sorted(described.queues, key=lambda one: (-one.lag, one.topic, one.queue_id))
    part = paged(request, queues, 32)
    waiting_ms = await _waiting_since(caller, part.items)
    rights = await _rights(caller, group)
    return render(
        request,
        "group.html",
        title=group,
        group=group,
        described=described,
        summary=described.summary,
        settings=await _settings(caller, group) if rights["may_alter"] else None,
        mode_name=mode_name,
        filter_text=filter_text,
        is_retry=is_retry,
        part=part,
        waiting_ms=waiting_ms,
        oldest_ms=min(waiting_ms.values(), default=0),
        has_sets=len({one.broker_set for one in described.queues}) > 1,
        topics=_topics(described),
        trend=_trend(caller, group),
        leases=await _leases(caller, described),
        dead_letters=await _dead_letters(caller, group),
        **rights,
    )


def _topics(described: DescribeGroupResponse) -> list[str]:
    return sorted({one.topic for one in described.queues if not is_retry(one.topic)})


async def _waiting_since(caller: Caller, queues: list[GroupQueue]) -> dict[QueueRef, int]:
    """When the next message of each queue was stored that is not consumed; of those that the
    caller may read.
    """
    places = {
        QueueRef(one.topic, one.queue_id, one.broker_set): max(one.committed, one.start)
        for one in queues
        if one.lag
    }
    return await caller.spans.first_stored_at_ms(places)


async def _settings(caller: Caller, group: str) -> GroupSettings | None:
    try:
        return await caller.admin.alter_group(group)
    except Unauthenticated:
        raise
    except MqError:
        return None


async def _leases(caller: Caller, described: DescribeGroupResponse) -> Any:
    """Of groups that receive; None: it does not."""
    if described.summary.members and not any(one.is_receiving for one in described.members):
        return None
    found = await caller.admin.list_leases(described.summary.group, max_leases=_LEASES)
    return found if found.leases else None


async def _dead_letters(caller: Caller, group: str) -> int:
    counts = await caller.admin.count_dead_letters()
    return next((one.messages for one in counts if one.group == group), 0)


async def _rights(caller: Caller, group: str) -> dict[str, bool]:
    return {
        "may_alter": await caller.may(Action.ALTER, Kind.GROUP, group),
        "may_delete": await caller.may(Action.DELETE, Kind.GROUP, group),
    }


async def series(request: Request) -> Response:
    history, group = caller_of(request).sampler.history, request.path_params["group"]
    return JSONResponse(
        {
            "times": [one / 1000 for one in history.times_ms()],
            "series": [{"label": "lag", "unit": "msg", "values": history.of("lag", group)}],
        }
    )


async def set_retries(request: Request) -> Response:
    caller, group = caller_of(request), request.path_params["group"]
    await require(caller, (Action.ALTER, Kind.GROUP, group))
    text = form_of(request).get("retries").strip()
    if not (text.isdecimal() and len(text) <= 4):
        raise IllegalRequest(f"{text[:50]!r} retries: use a number from 0 to 1,000")
    await caller.admin.alter_group(group, retries_max=int(text))
    return redirect(_path(group), "changed")


async def delete(request: Request) -> Response:
    caller, group = caller_of(request), request.path_params["group"]
    await require(caller, (Action.DELETE, Kind.GROUP, group))
    described = await caller.admin.describe_group(group)
    asked = confirmation(
        request,
        title=f"Delete group {group}",
        sentences=[
            f"Its offsets in {len(described.queues):,} queues are gone.",
            f"{described.summary.lag:,} messages wait for it: nobody will know that they did.",
            "A consumer that comes back under this name begins where its own settings say.",
        ],
        button="Delete the group",
        back=_path(group),
        command=f"mq group delete {group}",
        word=group,
    )
    if asked is not None:
        return asked
    await caller.admin.delete_group(group)
    await caller.sampler.poll()
    return redirect("/groups", "group-deleted")


# -- the wizard ------------------------------------------------------------------------------------


class Move:
    """Where a group is to be moved, from the URL or a form. IllegalRequest."""

    def __init__(self, get: Any, topics: list[str]) -> None:
        self.topic = get("topic") or (topics[0] if len(topics) == 1 else "")
        self.target = get("to") or "earliest"
        self.time = get("time").strip()
        self.queues = get("queues").strip()
        self.broker_set = get("set").strip()
        if self.target not in _TARGETS:
            raise IllegalRequest(f"to = {self.target[:50]!r}: use one of {', '.join(_TARGETS)}")

    @property
    def is_whole(self) -> bool:
        return bool(self.topic) and (self.target != "time" or bool(self.time))

    @property
    def to(self) -> Any:
        return parse_ms(self.time) if self.target == "time" else self.target

    @property
    def queue_ids(self) -> list[int]:
        parts = self.queues.replace(",", " ").split()
        if not all(one.isdecimal() and len(one) <= 5 for one in parts) or len(parts) > 1_000:
            raise IllegalRequest(f"queues {self.queues[:50]!r}: use numbers such as 0, 1, 2")
        return [int(one) for one in parts]

    def words(self, group: str) -> list[str]:
        """As arguments of the command."""
        place = parse_ms(self.time) if self.target == "time" else self.target
        queues = [word for one in self.queue_ids for word in ("--queue", str(one))]
        chosen = ["--set", self.broker_set] if self.broker_set else []
        return [
            "group",
            "reset",
            group,
            "--topic",
            self.topic,
            "--to",
            str(place),
            *queues,
            *chosen,
        ]


async def wizard(request: Request) -> Response:
    """With a topic and a place: what would be done, by a dry run."""
    caller, group = caller_of(request), request.path_params["group"]
    await require(caller, (Action.ALTER, Kind.GROUP, group))
    described = await caller.admin.describe_group(group)
    topics = _topics(described)
    move = Move(lambda name: request.query_params.get(name, ""), topics)
    rows: list[dict[str, Any]] = []
    if request.query_params.get("topic") and move.is_whole:
        answer = await caller.admin.reset_offsets(
            group, move.topic, move.to, move.queue_ids, dry_run=True, broker_set=move.broker_set
        )
        rows = _rows(answer, described, move.topic)
    words = move.words(group) if move.is_whole else []
    with_members = ["--force"] if described.summary.members else []
    return render(
        request,
        "reset.html",
        title=f"Move {group}",
        group=group,
        described=described,
        summary=described.summary,
        topics=topics,
        sets=sorted({one.broker_set for one in described.queues if one.broker_set}),
        move=move,
        part=paged(request, rows, 64),
        total=_total(rows),
        words=[*words, *with_members],
        dry_words=[*words, "--dry-run"],
    )


def _rows(answer: Any, described: DescribeGroupResponse, topic: str) -> list[dict[str, Any]]:
    before = {(one.broker_set, one.queue_id): one.queue_offset for one in answer.before}
    ends = {
        (one.broker_set, one.queue_id): one.end for one in described.queues if one.topic == topic
    }
    rows = []
    for one in answer.after:
        key = one.broker_set, one.queue_id
        at, end = before.get(key), ends.get(key)
        rows.append(
            {
                "broker_set": one.broker_set,
                "queue_id": one.queue_id,
                "before": at,
                "after": one.queue_offset,
                "change": one.queue_offset - at if at is not None else None,
                "lag_before": end - at if end is not None and at is not None else None,
                "lag_after": end - one.queue_offset if end is not None else None,
            }
        )
    return sorted(rows, key=lambda row: (row["broker_set"], row["queue_id"]))


def _total(rows: list[dict[str, Any]]) -> dict[str, int]:
    changes = [row["change"] or 0 for row in rows]
    return {
        "again": -sum(one for one in changes if one < 0),
        "skipped": sum(one for one in changes if one > 0),
        "new": sum(row["before"] is None for row in rows),
        "same": sum(row["change"] == 0 for row in rows),
    }


async def reset(request: Request) -> Response:
    caller, group = caller_of(request), request.path_params["group"]
    form = form_of(request)
    await require(caller, (Action.ALTER, Kind.GROUP, group))
    move = Move(form.get, [])
    if not move.is_whole:
        raise IllegalRequest("say which topic, and where to go on")
    members = (await caller.admin.describe_group(group)).summary.members
    if members and form.get("with_members") != "yes":
        raise IllegalRequest(
            f"group {group} was not moved: it has {members} members, which would go on elsewhere "
            "at once. Stop them first, or confirm it in the form"
        )
    try:
        await caller.admin.reset_offsets(
            group, move.topic, move.to, move.queue_ids, broker_set=move.broker_set
        )
    except TopicNotFound as error:
        raise IllegalRequest(str(error)) from None
    await caller.sampler.poll()
    return redirect(_path(group), "reset")


def _path(group: str) -> str:
    return f"/groups/{quote(group, safe='')}"


ROUTES = [
    Route("/groups", show_all),
    Route("/groups/{group}", show),
    Route("/groups/{group}/series.json", series),
    Route("/groups/{group}/retries", set_retries, methods=["POST"]),
    Route("/groups/{group}/delete", delete, methods=["POST"]),
    Route("/groups/{group}/reset", wizard, methods=["GET"]),
    Route("/groups/{group}/reset", reset, methods=["POST"]),
]
