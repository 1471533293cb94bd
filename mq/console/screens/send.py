"""Send: one message by hand, new or made of another one."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq.access.policies import Action, Kind
from mq.client.aio import Message
from mq.console import formats
from mq.console.gate import Form, caller_of, form_of
from mq.console.message_forms import opened
from mq.console.pages import NavigationEntry, render, status_of
from mq.errors import IllegalRequest, MqError, PermissionDenied, Unauthenticated

NAVIGATION = NavigationEntry("Send", "/send")

_TOPICS_OFFERED = 500
_ENCODINGS = ("text", "base64")
_EMPTY = {
    "topic": "",
    "body": "",
    "encoding": "text",
    "tag": "",
    "keys": "",
    "properties": "",
    "ordering_key": "",
    "delay": "",
}


async def show(request: Request) -> Response:
    caller, fields = caller_of(request), dict(_EMPTY)
    if origin := request.query_params.get("from", ""):
        message = opened(await caller.admin.get_message(origin))
        text = formats.text_of(message.body)
        # Browsers send every end of a line as CRLF: what has another one keeps its bytes.
        is_text = text is not None and "\r" not in text
        fields |= {
            "topic": message.topic,
            "encoding": "text" if is_text else "base64",
            "body": (text or "") if is_text else base64.b64encode(message.body).decode(),
            "tag": message.tag,
            "keys": "\n".join(message.keys),
            "properties": "\n".join(f"{name}={one}" for name, one in message.properties.items()),
            "ordering_key": message.ordering_key,
        }
    if topic := request.query_params.get("topic", ""):
        fields["topic"] = topic
    return await _page(request, fields, origin=origin)


async def _page(
    request: Request,
    fields: dict[str, str],
    *,
    origin: str = "",
    error: MqError | None = None,
    result: object = None,
) -> Response:
    caller = caller_of(request)
    sample = await caller.sampler.first()
    may_send = not fields["topic"] or await caller.may(Action.PUBLISH, Kind.TOPIC, fields["topic"])
    return render(
        request,
        "send.html",
        status_of(error) if error is not None else 200,
        title="Send",
        fields=fields,
        origin=origin,
        error=error,
        result=result,
        encodings=_ENCODINGS,
        topics=[one.info.topic for one in sample.topics[:_TOPICS_OFFERED]],
        may_send=may_send,
        command_line=_command(fields),
    )


async def send(request: Request) -> Response:
    caller, form = caller_of(request), form_of(request)
    fields = {name: form.text(name) for name in _EMPTY}
    try:
        topic, message = fields["topic"].strip(), _message(form)
        result = await caller.producer.send(topic, message)
    except (PermissionDenied, Unauthenticated):
        raise
    except MqError as error:
        return await _page(request, fields, error=error)
    return await _page(request, fields, result=result)


def _message(form: Form) -> Message:
    """Raises IllegalRequest, and names the field."""
    text = form.text("body")
    if form.get("encoding") == "base64":
        try:
            body = base64.b64decode(text, validate=False)
        except (binascii.Error, ValueError):
            raise IllegalRequest("the body is no base64: choose text, or mend it") from None
    else:
        body = text.encode()
    properties: dict[str, str] = {}
    for line in filter(None, map(str.strip, form.text("properties").split("\n"))):
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise IllegalRequest(f"property {line[:100]!r} is not like name=value")
        properties[name.strip()] = value.strip()
    delay = form.get("delay").strip()
    try:
        delay_s = float(delay or 0)
    except ValueError:
        raise IllegalRequest(f"delay {delay[:50]!r} is no number of seconds") from None
    return Message(
        body,
        tag=form.get("tag").strip(),
        keys=[one for one in map(str.strip, form.text("keys").split("\n")) if one],
        properties=properties,
        ordering_key=form.get("ordering_key").strip(),
        delay_s=delay_s,
    )


def _command(fields: dict[str, str]) -> str:
    words = ["produce", fields["topic"] or "TOPIC"]
    if fields["encoding"] == "text":
        words.append(fields["body"][:200] or "BODY")
    else:
        words += ["--file", "BODY", "--whole"]
    if fields["tag"]:
        words += ["--tag", fields["tag"]]
    for key in filter(None, fields["keys"].split("\n")):
        words += ["--key", key]
    for one in filter(None, fields["properties"].split("\n")):
        words += ["--property", one]
    if fields["ordering_key"]:
        words += ["--ordering-key", fields["ordering_key"]]
    if fields["delay"]:
        words += ["--delay", f"{fields['delay']}s"]
    return formats.command(*words)


ROUTES = [Route("/send", show, methods=["GET"]), Route("/send", send, methods=["POST"])]
