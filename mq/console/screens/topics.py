"""Topics: all of them, from the last sample; one of them, asked for now."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mq.access.policies import Action, Kind
from mq.client.messages import QueueRef
from mq.console.callers import Caller
from mq.console.gate import caller_of, form_of
from mq.console.pages import NavigationEntry, Paged, paged, redirect, render
from mq.console.sampler import Sampler
from mq.errors import IllegalRequest
from mq.wire.v1.admin_pb2 import TopicSummary
from mq.wire.v1.cluster_pb2 import TopicType

NAVIGATION = NavigationEntry("Topics", "/topics")

_SPARK = 60
_SORTS = ("name", "messages", "bytes", "in", "queues")
TYPES = ("normal", "ordered", "delayed", "transactional")
_QUEUES_MAX = 65_536


def type_name(number: int) -> str:
    name: str = TopicType.Name(number)
    return name.removeprefix("TOPIC_").lower()


async def show_all(request: Request) -> Response:
    caller = caller_of(request)
    sample = await caller.sampler.first()
    if sample.error is not None and not sample.sets:
        raise sample.error
    wanted = request.query_params.get("q", "").strip()
    sort = request.query_params.get("sort", "name")
    found = _sorted(caller.sampler, [one for one in sample.topics if matches(one, wanted)], sort)
    part: Paged = paged(request, found)
    history = caller.sampler.history
    names = [one.info.topic for one in part.items]
    return render(
        request,
        "topics.html",
        title="Topics",
        sample=sample,
        part=part,
        wanted=wanted,
        sort=sort if sort in _SORTS else "name",
        rates=history.latest("in", names),
        byte_rates=history.latest("bytes", names),
        spark=lambda name: history.last("in", name, _SPARK),
        type_name=type_name,
        types=TYPES,
        may_create=await caller.may(Action.CREATE, Kind.TOPIC, wanted or "new"),
    )


def matches(one: TopicSummary, wanted: str) -> bool:
    """Every word is part of the name."""
    name = one.info.topic.lower()
    return all(word in name for word in wanted.lower().split())


def _sorted(sampler: Sampler, found: list[TopicSummary], sort: str) -> list[TopicSummary]:
    match sort:
        case "messages":
            return sorted(found, key=lambda one: -one.messages)
        case "bytes":
            return sorted(found, key=lambda one: -one.info.stored_bytes)
        case "queues":
            return sorted(found, key=lambda one: -one.info.read_queues)
        case "in":
            rates = sampler.history.latest("in", [one.info.topic for one in found])
            return sorted(found, key=lambda one: -rates[one.info.topic])
        case _:
            return found


async def show(request: Request) -> Response:
    caller, topic = caller_of(request), request.path_params["topic"]
    described = await caller.admin.describe_topic(topic)
    sample, history = await caller.sampler.first(), caller.sampler.history
    queues = sorted(described.queues, key=lambda one: (one.broker_set, one.queue_id))
    part = paged(request, queues, 32)
    refs = [QueueRef(topic, one.queue_id, one.broker_set) for one in part.items]
    first = await caller.spans.first_stored_at_ms(
        {ref: one.start for ref, one in zip(refs, part.items, strict=True) if one.end > one.start}
    )
    groups = [one for one in sample.groups if topic in one.topics or one.group in described.groups]
    return render(
        request,
        "topic.html",
        title=topic,
        topic=topic,
        described=described,
        info=described.info,
        type_name=type_name,
        part=part,
        first_ms={(ref.broker_set, ref.queue_id): first.get(ref, 0) for ref in refs},
        messages=sum(one.end - one.start for one in described.queues),
        last_ms=max((one.last_stored_at_ms for one in described.queues), default=0),
        rate=history.latest("in", [topic])[topic],
        byte_rate=history.latest("bytes", [topic])[topic],
        groups=groups,
        spark=lambda group: history.last("lag", group, _SPARK),
        **await _rights(caller, topic),
    )


async def _rights(caller: Caller, topic: str) -> dict[str, Any]:
    return {
        "may_send": await caller.may(Action.PUBLISH, Kind.TOPIC, topic),
        "may_read": await caller.may(Action.CONSUME, Kind.TOPIC, topic),
        "may_delete": await caller.may(Action.DELETE, Kind.TOPIC, topic),
    }


async def series(request: Request) -> Response:
    history, topic = caller_of(request).sampler.history, request.path_params["topic"]
    return JSONResponse(
        {
            "times": [one / 1000 for one in history.times_ms()],
            "series": [
                {"label": "messages", "unit": "/s", "values": history.of("in", topic)},
                {"label": "bytes", "unit": "B/s", "values": history.of("bytes", topic)},
            ],
        }
    )


async def create(request: Request) -> Response:
    caller, form = caller_of(request), form_of(request)
    name, kind, queues = form.get("topic").strip(), form.get("type"), form.get("queues").strip()
    if queues and not (queues.isdecimal() and int(queues) <= _QUEUES_MAX):
        raise IllegalRequest(f"{queues[:50]!r} queues: use a number up to {_QUEUES_MAX:,}")
    if kind not in TYPES:
        raise IllegalRequest(f"type {kind[:50]!r}: use one of {', '.join(TYPES)}")
    await caller.admin.create_topic(name, int(queues or 0), kind)  # type: ignore[arg-type] # checked
    return redirect(f"/topics/{quote(name, safe='')}", "created")


async def delete(request: Request) -> Response:
    caller, topic = caller_of(request), request.path_params["topic"]
    if form_of(request).get("confirmed") != topic:
        raise IllegalRequest(
            f"topic {topic} was not deleted: type its name into the form to confirm"
        )
    await caller.admin.delete_topic(topic)
    await caller.sampler.poll()
    return redirect("/topics", "deleted")


ROUTES = [
    Route("/topics", show_all, methods=["GET"]),
    Route("/topics", create, methods=["POST"]),
    Route("/topics/{topic}", show, methods=["GET"]),
    Route("/topics/{topic}/series.json", series),
    Route("/topics/{topic}/delete", delete, methods=["POST"]),
]
