"""Login and logout: a password, or an API key, for a session of this console.

The password goes to the brokers and is kept nowhere; the key that they give for it, or that the
user brings, stays in the memory of this process. Failed attempts are counted by address and user.
"""

from __future__ import annotations

import contextlib
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mq.client.aio import Admin
from mq.console.callers import arguments
from mq.console.gate import form_of
from mq.console.pages import redirect, render
from mq.console.sessions import FailureLimit
from mq.errors import IllegalConfig, IllegalRequest, MqError, Unauthenticated

_TOO_OFTEN = "Too many failed attempts: wait a minute, then try again."


async def show(request: Request) -> Response:
    return _form(request, next_path=_next(request.query_params.get("next", "")))


def _form(
    request: Request, *, next_path: str, user: str = "", error: str = "", status: int = 200
) -> Response:
    return render(
        request,
        "login.html",
        status,
        title="Sign in",
        next_path=next_path,
        login_user=user,
        error=error,
    )


def _next(path: str) -> str:
    """A path of this console: nothing that a browser could take for another place."""
    is_ours = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if is_ours and path.isprintable() and len(path) < 4096 else "/"


async def sign_in(request: Request) -> Response:
    form = form_of(request)
    next_path, user = _next(form.get("next")), form.get("user").strip()
    limit: FailureLimit = request.app.state.failures
    address = request.client.host if request.client is not None else ""
    names = [f"address {address}", *([f"user {user}"] if user else [])]
    if any(map(limit.is_reached, names)):
        return _form(request, next_path=next_path, user=user, error=_TOO_OFTEN, status=429)
    try:
        key, lasts_s = await _key(request, user, form.get("password"), form.get("api_key").strip())
        session = await _begin(request, key, lasts_s)
    except (Unauthenticated, IllegalConfig) as error:
        for name in names:
            limit.note(name)
        return _form(request, next_path=next_path, user=user, error=str(error), status=401)
    except IllegalRequest as error:
        return _form(request, next_path=next_path, user=user, error=str(error), status=400)
    request.scope["state"]["gate"].begin_session(request, session)
    return redirect(next_path)


async def _key(request: Request, user: str, password: str, api_key: str) -> tuple[str, float]:
    """The key, and for how long it counts."""
    settings = request.app.state.settings
    if api_key:
        return api_key, float("inf")
    if not user or not password:
        raise IllegalRequest("Give a user and a password, or an API key.")
    async with Admin(**arguments(settings, None), timeout_s=settings.timeout_s) as admin:
        session = await admin.login(user, password)
    return session.key.text, session.expires_at_ms / 1000 - time.time()


async def _begin(request: Request, key: str, lasts_s: float) -> str:
    """The id of the new session. Unauthenticated when the brokers do not know the key."""
    settings = request.app.state.settings
    async with Admin(**arguments(settings, key), timeout_s=settings.timeout_s) as admin:
        known = await admin.who_am_i()
    who = next(iter(known.values()))
    if not who.user:
        raise Unauthenticated("the brokers do not know this key")
    if who.expires_at_ms:
        lasts_s = min(lasts_s, who.expires_at_ms / 1000 - time.time())
    sessions = request.app.state.callers.sessions
    session = sessions.begin(who.user, key, roles=tuple(who.roles), lasts_s=lasts_s)
    return str(session.id)


async def sign_out(request: Request) -> Response:
    """A key that a login gave is revoked; an API key that the user brought is theirs."""
    caller = request.scope["state"]["caller"]
    if caller is not None and caller.session is not None:
        with contextlib.suppress(MqError):
            known = await caller.admin.who_am_i()
            if any(one.expires_at_ms for one in known.values()):
                await caller.admin.logout()
        request.app.state.callers.sessions.end(caller.session)
    return redirect("/login", "signed-out")


ROUTES = [
    Route("/login", show, methods=["GET"]),
    Route("/login", sign_in, methods=["POST"]),
    Route("/logout", sign_out, methods=["POST"]),
]
