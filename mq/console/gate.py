"""The checks of every request before a screen sees it, and of every response on its way out.

- Host: a console on loopback answers to loopback names alone, so that no other site can point its
  own name here and read along.
- Session: who asks. Those who have to sign in are sent to the login, and nothing else is served.
- POST: Origin (or Sec-Fetch-Site) is this console, the token of the form belongs to the cookie of
  the browser, the body has a limit.
- Headers: no script, style, frame or request that is not from here.

A plain ASGI layer: responses that stream are not held back. It decides nothing about rights: the
brokers do.
"""

from __future__ import annotations

import contextlib
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mq.console.callers import Caller, Callers
from mq.console.sessions import FormTokens, new_id
from mq.console.settings import ConsoleSettings
from mq.errors import MqError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Nothing for other sites. With no-referrer browsers would send forms with `Origin: null`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
TOKEN_FIELD = "form_token"  # noqa: S105 - the name of a field

# A body of 4 MiB, each byte of which may be three in a form, and what is around it.
SEND_BYTES_MAX = 14 << 20
FORM_BYTES_MAX = 256 << 10
_FIELDS_MAX = 5_000
_LOOPBACK = {"127.0.0.1", "localhost", "[::1]", "::1"}
_OPEN = ("/static/", "/login", "/health")


class Gate:
    def __init__(
        self, app: ASGIApp, settings: ConsoleSettings, callers: Callers, tokens: FormTokens
    ) -> None:
        self._app = app
        self._settings = settings
        self._callers = callers
        self._tokens = tokens
        self._cookie = "__Host-mq" if settings.is_https else "mq_session"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cookie = _cookie(headers, self._cookie)
        browser_id = cookie or new_id()
        state = scope.setdefault("state", {})
        state["gate"] = self
        state["browser_id"] = browser_id
        state["form_token"] = self._tokens.of(browser_id)
        state["caller"] = None

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(scope, message, state, cookie)
            await send(message)

        refusal = self._wrong_host(headers) or await self._wrong_form(scope, headers, receive)
        if refusal is None:
            refusal = await self._find_caller(scope, cookie, state)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    # -- who ---------------------------------------------------------------------------------------

    async def _find_caller(
        self, scope: Scope, cookie: str, state: dict[str, object]
    ) -> Response | None:
        path = scope["path"]
        session = self._callers.sessions.find(cookie) if cookie else None
        if session is not None:
            state["caller"] = self._callers.of(session)
            return None
        if path.startswith(_OPEN):
            return None
        try:
            caller = await self._callers.everybody()
        except MqError as error:
            state["trouble"] = error
            return None
        state["caller"] = caller
        if caller is not None:
            return None
        query = scope["query_string"].decode("latin-1")
        wanted = f"{path}?{query}" if query else path
        return _to_login(Headers(scope=scope), wanted if scope["method"] == "GET" else "/")

    def begin_session(self, request: Request, browser_id: str) -> None:
        """The cookie of the response is this one: a session never has the id of what was before."""
        request.scope["state"]["browser_id"] = browser_id
        request.scope["state"]["form_token"] = self._tokens.of(browser_id)

    # -- forms -------------------------------------------------------------------------------------

    def _wrong_host(self, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if self._settings.public_url:
            is_right = host == urlsplit(self._settings.public_url).netloc or name in _LOOPBACK
        else:
            is_right = not self._settings.is_loopback or name in _LOOPBACK
        if is_right:
            return None
        return _refused(421, f"This console is not at {host[:200]!r}: see --public-url.")

    async def _wrong_form(
        self, scope: Scope, headers: Headers, receive: Receive
    ) -> Response | None:
        method = scope["method"]
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return _refused(405, "Only GET and POST are served.")
        if not self._is_from_here(scope, headers):
            return _refused(403, "This form was not sent by a page of this console.")
        if not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return _refused(415, "Forms are application/x-www-form-urlencoded.")
        limit = SEND_BYTES_MAX if scope["path"] == "/send" else FORM_BYTES_MAX
        body = await _body(headers, receive, limit)
        if body is None:
            return _refused(413, f"A form of this page has at most {limit:,} bytes.")
        try:
            fields = parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict"
            )
        except ValueError:
            return _refused(400, "This is no form.")
        scope["state"]["form"] = Form(fields)
        token = scope["state"]["form"].get(TOKEN_FIELD)
        if not self._tokens.is_right(_cookie(headers, self._cookie), token):
            return _refused(403, "The page is out of date: load it again, and send its form.")
        return None

    def _is_from_here(self, scope: Scope, headers: Headers) -> bool:
        here = self._settings.origin or f"{scope['scheme']}://{headers.get('host', '')}"
        site = headers.get("sec-fetch-site", "same-origin")
        return headers.get("origin") == here and site == "same-origin"

    # -- out ---------------------------------------------------------------------------------------

    def _add_headers(
        self, scope: Scope, message: Message, state: dict[str, object], cookie: str
    ) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers[name] = value
        if not scope["path"].startswith("/static/"):
            headers["cache-control"] = "no-store"
            if state["browser_id"] != cookie:
                secure = "; Secure" if self._settings.is_https else ""
                headers.append(
                    "set-cookie",
                    f"{self._cookie}={state['browser_id']}; Path=/; HttpOnly; "
                    f"SameSite=Strict{secure}",
                )


class Form:
    """The fields of a POST; of those with the same name, all."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self._fields if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._fields if key == name]

    def items(self) -> list[tuple[str, str]]:
        return self._fields

    def text(self, name: str) -> str:
        """Of a text area: browsers send its lines with CRLF, whatever stood there."""
        return self.get(name).replace("\r\n", "\n")


def form_of(request: Request) -> Form:
    """Checked by the gate: only a POST has one."""
    form: Form = request.scope["state"]["form"]
    return form


def caller_of(request: Request) -> Caller:
    """Raises the error that no broker has answered with."""
    trouble = request.scope["state"].get("trouble")
    if trouble is not None:
        raise trouble
    caller: Caller = request.scope["state"]["caller"]
    return caller


def _to_login(headers: Headers, wanted: str) -> Response:
    to = "/login" if wanted == "/" else f"/login?next={quote(wanted, safe='')}"
    if headers.get("hx-request"):
        # A table that refreshes itself: the whole page goes there.
        return Response(status_code=401, headers={"hx-redirect": to})
    if "text/html" not in headers.get("accept", "text/html, */*") and "*/*" not in headers.get(
        "accept", ""
    ):
        return _refused(401, "Sign in first.")
    return RedirectResponse(to, status_code=303)


def _refused(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status)


def _cookie(headers: Headers, name: str) -> str:
    with contextlib.suppress(CookieError):
        found = SimpleCookie(headers.get("cookie", "")[:8192]).get(name)
        if found is not None and len(found.value) <= 128:
            return found.value
    return ""


async def _body(headers: Headers, receive: Receive, limit: int) -> bytes | None:
    """None: too large. Reads no more than the limit."""
    announced = headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > limit:
        return None
    parts, count = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        count += len(parts[-1])
        if count > limit:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)
