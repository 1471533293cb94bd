"""Messages: find them by place, time, filter or text, follow them live, look at one, get them all.

Every question costs brokers a bounded amount: a page has a budget of seconds and messages and says
how far it came, a tail has a pace, a download an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mq.access.policies import Action, Kind
from mq.client.messages import ReceivedMessage
from mq.console import formats, positions
from mq.console.callers import Caller
from mq.console.gate import caller_of
from mq.console.message_forms import again, json_line, opened
from mq.console.message_query import PLACES, MessageQuery
from mq.console.pages import TEMPLATES, NavigationEntry, redirect, render
from mq.console.scanning import Budget, Scan
from mq.console.tailing import Tail
from mq.errors import FlowControl, IllegalRequest, MqError
from mq.names import is_internal_topic, parse_message_id

NAVIGATION = NavigationEntry("Messages", "/messages")

PAGE = 50
TAILS_MAX = 32
DOWNLOAD_MESSAGES_MAX, DOWNLOAD_BYTES_MAX = 100_000, 256 << 20
_TOPICS_OFFERED = 500
# Of a body that is shown on a page; the download has all of it.
_SHOWN_BYTES = 256 << 10


async def show_all(request: Request) -> Response:
    caller = caller_of(request)
    query = MessageQuery.of(request.query_params)
    if message_id := request.query_params.get("id", "").strip():
        parse_message_id(message_id)
        return redirect(f"/messages/{quote(message_id, safe='')}")
    sample = await caller.sampler.first()
    values: dict[str, Any] = {
        "query": query,
        "places": PLACES,
        "topics": [one.info.topic for one in sample.topics[:_TOPICS_OFFERED]],
        "groups": sorted(one.group for one in sample.groups if query.topic in one.topics),
        "is_live": bool(request.query_params.get("live")) and bool(query.topic),
        "tail": f"/messages/tail?{request.url.query}",
        "download": f"/messages.jsonl?{request.url.query}",
        "error": None,
        "messages": None,
        "scan": None,
        "next": "",
        "may_send": False,
    }
    if not query.topic:
        return render(request, "messages.html", title="Messages", **values)
    values["may_send"] = await caller.may(Action.PUBLISH, Kind.TOPIC, query.topic)
    status = 200
    try:
        if values["is_live"]:
            # Whether it is there, and filters are right, before a browser follows it.
            values["tail"] = f"/messages/tail?{_tail_query(query)}"
            lanes = await query.lanes(caller)
            await Scan(caller.pull, lanes[:1], is_backward=True, wanted=query.wanted).page(1)
        elif query.key:
            found = await caller.admin.query_messages(query.topic, query.key)
            values["messages"] = [opened(one) for one in found]
        else:
            scan = Scan(
                caller.pull,
                await query.lanes(caller),
                is_backward=query.is_backward,
                wanted=query.wanted,
                predicate=query.predicate,
            )
            values["messages"] = await scan.page(PAGE)
            values["scan"] = scan
            if scan.left:
                values["next"] = positions.encode(scan.positions())
    except IllegalRequest as error:
        values["error"], status = error, 400
    except MqError as error:
        if error.retryable or not error.code.name.startswith("ILLEGAL"):
            raise
        values["error"], status = error, 400
    return render(request, "messages.html", status, title=f"Messages of {query.topic}", **values)


def _tail_query(query: MessageQuery) -> str:
    found = {
        "topic": query.topic,
        "queue": query.queue,
        "tag": query.tag,
        "sql": query.sql,
        "text": query.text,
    }
    return urlencode({name: value for name, value in found.items() if value})


# One


async def show(request: Request) -> Response:
    caller = caller_of(request)
    message = await _message(caller, request)
    text, as_json = formats.text_of(message.body), formats.json_of(message.body)
    forms = {"json": as_json, "text": text, "hex": formats.hex_of(message.body)}
    form = request.query_params.get("as", "")
    if forms.get(form) is None:
        form = next(name for name, one in forms.items() if one is not None)
    broker_set = parse_message_id(message.message_id)[0]
    shown = forms[form] or ""
    return render(
        request,
        "message.html",
        title=message.message_id,
        message=message,
        broker_set=broker_set,
        forms=[name for name, one in forms.items() if one is not None],
        form=form,
        body=shown[:_SHOWN_BYTES],
        is_body_cut=len(shown) > _SHOWN_BYTES,
        size=len(message.body),
        may_send=not is_internal_topic(message.topic)
        and await caller.may(Action.PUBLISH, Kind.TOPIC, message.topic),
        resend_line=_resend_line(message),
    )


def _resend_line(message: ReceivedMessage) -> str:
    """The command that sends it again on a terminal."""
    words = ["produce", message.topic, "--file", "-", "--whole"]
    words += ["--tag", message.tag] if message.tag else []
    words += [word for key in message.keys for word in ("--key", key)]
    for name, value in message.properties.items():
        words += ["--property", f"{name}={value}"]
    words += ["--ordering-key", message.ordering_key] if message.ordering_key else []
    taken = formats.command("message", "get", message.message_id, "--raw")
    return f"{taken} | {formats.command(*words)}"


async def _message(caller: Caller, request: Request) -> ReceivedMessage:
    return opened(await caller.admin.get_message(request.path_params["message_id"]))


async def body(request: Request) -> Response:
    """The bytes as they were sent: a file to keep, never something that a browser would show."""
    message = await _message(caller_of(request), request)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", message.message_id)
    return Response(
        message.body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}.bin"'},
    )


async def resend(request: Request) -> Response:
    caller = caller_of(request)
    message = await _message(caller, request)
    result = await caller.producer.send(message.topic, again(message))
    return redirect(f"/messages/{quote(result.message_id, safe='')}", "sent")


# Many


async def download(request: Request) -> Response:
    caller, query = caller_of(request), MessageQuery.of(request.query_params)
    if not query.topic:
        raise IllegalRequest("download messages of which topic? name one")
    budget = Budget(seconds=600.0, messages=10 * DOWNLOAD_MESSAGES_MAX)
    scan = Scan(
        caller.pull,
        await query.lanes(caller),
        is_backward=query.is_backward,
        wanted=query.wanted,
        predicate=query.predicate,
        budget=budget,
    )

    async def lines() -> AsyncIterator[bytes]:
        count = size = 0
        async for message in scan.messages(1_000):
            line = json_line(message)
            count, size = count + 1, size + len(line)
            yield line
            if count >= DOWNLOAD_MESSAGES_MAX or size >= DOWNLOAD_BYTES_MAX:
                return

    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", query.topic)
    return StreamingResponse(
        lines(),
        media_type="application/jsonl",
        headers={"content-disposition": f'attachment; filename="{name}.jsonl"'},
    )


# Live


async def tail(request: Request) -> Response:
    """Events with rows; the id of each is the vector of queue offsets behind it."""
    caller, query = caller_of(request), MessageQuery.of(request.query_params)
    if caller.tails >= TAILS_MAX:
        raise FlowControl(f"{TAILS_MAX} live tails are open already: close some")
    after = request.headers.get("last-event-id") or query.after
    following = Tail(
        caller.reads,
        query.topic,
        queue=query.queue_ref,
        wanted=query.wanted,
        predicate=query.predicate,
        after=positions.decode(query.topic, after),
    )
    template = TEMPLATES.get_template("message_rows.html")

    def render_rows(messages: Sequence[ReceivedMessage]) -> str:
        return template.render(messages=messages)

    async def events() -> AsyncIterator[bytes]:
        caller.tails += 1
        try:
            yield b"retry: 1000\n\n"
            async for event in following.events():
                document = {
                    "rows": caller.reads.rows(event.messages[::-1], render_rows),
                    "count": len(event.messages),
                    "skipped": event.skipped,
                    "trouble": event.trouble,
                }
                yield _event("rows", document, positions.encode(event.positions))
        except MqError as error:
            yield _event("failed", {"text": str(error)}, "")
        finally:
            caller.tails -= 1

    return StreamingResponse(
        events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


def _event(name: str, document: dict[str, object], event_id: str) -> bytes:
    lines = [f"event: {name}", *([f"id: {event_id}"] if event_id else [])]
    return "\n".join([*lines, f"data: {json.dumps(document)}", "", ""]).encode()


ROUTES = [
    Route("/messages", show_all),
    Route("/messages.jsonl", download),
    Route("/messages/tail", tail),
    Route("/messages/{message_id}", show),
    Route("/messages/{message_id}/body", body),
    Route("/messages/{message_id}/resend", resend, methods=["POST"]),
]
