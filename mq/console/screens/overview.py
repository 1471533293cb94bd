"""Overview: alarms first, then what moves, then sets and nodes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mq.console.alarms import alarms
from mq.console.gate import caller_of
from mq.console.pages import NavigationEntry, render
from mq.console.sampler import ALL, Sampler

NAVIGATION = NavigationEntry("Overview", "/")

_SPARK = 120
_BUSIEST = 6


async def show(request: Request) -> Response:
    caller = caller_of(request)
    sample = await caller.sampler.first()
    if sample.error is not None and not sample.sets:
        raise sample.error
    history = caller.sampler.history
    rates = history.latest("in", [one.info.topic for one in sample.topics])
    busiest = sorted(sample.topics, key=lambda one: -rates[one.info.topic])[:_BUSIEST]
    behind = sorted(sample.groups, key=lambda one: -one.lag)[:_BUSIEST]
    leaders = [one.status for one in sample.nodes if one.is_leader and one.status]
    return render(
        request,
        "overview.html",
        title="Overview",
        sample=sample,
        alarms=alarms(sample, history),
        sets=_sets(caller.sampler),
        total={name: history.last(name, ALL, _SPARK) for name in ("in", "out", "bytes", "lag")},
        now=history.latest("in", [ALL]) | {"out": history.latest("out", [ALL])[ALL]},
        rates={name: history.latest(name, [ALL])[ALL] for name in ("in", "out", "bytes", "lag")},
        messages=sum(one.messages for one in sample.topics),
        stored_bytes=sum(one.info.stored_bytes for one in sample.topics),
        waiting={
            "dead letters": sum(one.dead_letters for one in leaders),
            "delayed": sum(one.timing_messages for one in leaders),
            "half messages": sum(one.half_messages for one in leaders),
        },
        busiest=[(one, rates[one.info.topic]) for one in busiest if rates[one.info.topic]],
        spark=lambda measure, name: history.last(measure, name, _SPARK),
        behind=[one for one in behind if one.lag],
    )


def _sets(sampler: Sampler) -> list[dict[str, object]]:
    """By set: its nodes, with how far each is behind."""
    sample = sampler.sample
    found = []
    for one in sample.sets:
        nodes = [node for node in sample.nodes if node.broker_set == one.name]
        leader = next((node.status for node in nodes if node.is_leader and node.status), None)
        behind = {each.node_id: each for each in leader.followers} if leader is not None else {}
        found.append({"set": one, "nodes": nodes, "behind": behind, "leader": leader})
    return found


async def series(request: Request) -> Response:
    """For the plot: seconds, and the numbers of all topics together."""
    history = caller_of(request).sampler.history
    return JSONResponse(
        {
            "times": [one / 1000 for one in history.times_ms()],
            "series": [
                {"label": "in", "unit": "/s", "values": history.of("in", ALL)},
                {"label": "out", "unit": "/s", "values": history.of("out", ALL)},
            ],
        }
    )


ROUTES = [Route("/", show), Route("/series.json", series)]
