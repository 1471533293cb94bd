"""Pages from templates: what all of them show around their content, and how errors look.

    return await page(request, "topics.html", title="Topics", topics=found)

Templates escape everything (autoescape cannot be turned off by a template's name), and are told of
undefined names by an error.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mq.console import formats
from mq.console.callers import Caller
from mq.errors import Code, MqError

HERE = Path(__file__).parent


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=formats.number,
        rate=formats.rate,
        size=formats.size,
        ago=formats.ago,
        utc=formats.utc,
        iso=formats.iso,
        duration=formats.duration,
        preview=formats.preview,
        path=lambda text: quote(str(text), safe=""),
    )
    made.globals.update(
        percent=formats.percent, command=formats.command, sparkline=formats.sparkline
    )
    return made


TEMPLATES = _environment()


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A line of the navigation: `path` begins the paths of its screen."""

    label: str
    path: str


# Filled by `screens`.
NAVIGATION: list[NavigationEntry] = []

_THEMES, _ZONES = ("auto", "light", "dark"), ("local", "utc")

_STATUS = {
    Code.PERMISSION_DENIED: 403,
    Code.TOPIC_NOT_FOUND: 404,
    Code.GROUP_NOT_FOUND: 404,
    Code.QUEUE_NOT_FOUND: 404,
    Code.MESSAGE_NOT_FOUND: 404,
    Code.USER_NOT_FOUND: 404,
    Code.TRANSACTION_NOT_FOUND: 404,
    Code.TOPIC_EXISTS: 409,
    Code.GROUP_NOT_EMPTY: 409,
    Code.VERSION_MISMATCH: 409,
    Code.QUOTA_EXCEEDED: 429,
    Code.INTERNAL: 500,
    Code.UNREACHABLE: 503,
    Code.NO_LEADER: 503,
}


def status_of(error: MqError) -> int:
    return _STATUS.get(error.code, 503 if error.retryable else 400)


def render(request: Request, template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    """A page, or with `HX-Request` the same page, of which the browser takes the part it wants."""
    state = request.scope["state"]
    caller: Caller | None = state.get("caller")
    theme = request.cookies.get("mq_theme", "auto")
    zone = request.cookies.get("mq_zone", "local")
    text = TEMPLATES.get_template(template).render(
        request=request,
        path=request.url.path,
        here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        navigation=NAVIGATION,
        user=caller.user if caller is not None else "",
        roles=caller.session.roles if caller is not None and caller.session else (),
        cluster=caller.sampler.sample.cluster if caller is not None else "",
        form_token=state["form_token"],
        theme=theme if theme in _THEMES else "auto",
        zone=zone if zone in _ZONES else "local",
        now_ms=time.time_ns() // 1_000_000,
        with_query=lambda **changed: with_query(request, **changed),
        **{"notice": notice_of(request), **values},
    )
    return HTMLResponse(text, status_code)


def error_page(request: Request, error: MqError, status: int = 0) -> HTMLResponse:
    return render(
        request,
        "error.html",
        status or status_of(error),
        title="Error",
        error=error,
        code=error.code.value,
        status=status or status_of(error),
    )


def with_query(request: Request, **changed: Any) -> str:
    """This page with other filters; None and "" remove one. A change of filters begins at the
    first page.
    """
    found = {key: value for key, value in request.query_params.multi_items() if key != "notice"}
    if "page" not in changed:
        found.pop("page", None)
    if "after" not in changed:
        found.pop("after", None)
    found.update({key: str(value) for key, value in changed.items() if value not in (None, "")})
    for key, value in changed.items():
        if value in (None, ""):
            found.pop(key, None)
    return request.url.path + (f"?{urlencode(found)}" if found else "")


# What was done, on the page after it: one of these sentences, never text of a link.
_NOTICES = {
    "created": "The topic was created.",
    "deleted": "The topic was deleted.",
    "changed": "The change was made.",
    "sent": "The message was sent: this is the new one.",
    "reset": "The group was moved.",
    "group-deleted": "The group was deleted.",
    "recalled": "The message was taken back: it will not be delivered.",
    "asked": "Its producer was asked: the transaction ends when the answer comes.",
    "committed": "The transaction was committed: its messages are on their topic.",
    "rolled-back": "The transaction was rolled back: nobody will see its messages.",
    "transferred": "Another node leads now.",
    "ended": "The session has ended: sign in again.",
    "signed-out": "You are signed out: the key of this session is revoked.",
}


def notice_of(request: Request) -> str:
    return _NOTICES.get(request.query_params.get("notice", ""), "")


def redirect(to: str, notice: str = "") -> Response:
    """After a POST. `to` is a path of ours."""
    if notice:
        to += ("&" if "?" in to else "?") + urlencode({"notice": notice})
    return RedirectResponse(to, status_code=303)


@dataclass(frozen=True, slots=True)
class Paged:
    """A part of a long list."""

    items: list[Any]
    number: int
    pages: int
    total: int

    @property
    def has_more(self) -> bool:
        return self.number < self.pages


def paged(request: Request, items: list[Any], per_page: int = 50) -> Paged:
    """The part that the page number in the URL names; one that is too high is the last."""
    pages = max(1, -(-len(items) // per_page))
    text = request.query_params.get("page", "1")
    number = min(max(1, int(text)), pages) if text.isdecimal() and len(text) < 9 else 1
    return Paged(items[(number - 1) * per_page : number * per_page], number, pages, len(items))
