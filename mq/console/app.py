"""The application: screens behind the gate, static files, and how errors are shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mq.console.callers import Callers
from mq.console.gate import Gate
from mq.console.pages import HERE, error_page, redirect, render
from mq.console.screens import routes
from mq.console.sessions import FailureLimit, FormTokens
from mq.console.settings import ConsoleSettings
from mq.errors import Internal, MqError, Unauthenticated

log = logging.getLogger(__name__)


def make_app(settings: ConsoleSettings) -> Starlette:
    callers = Callers(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        task = asyncio.create_task(callers.begin())
        try:
            yield
        finally:
            task.cancel()
            await callers.close()

    app = Starlette(
        routes=[
            Route("/health", _health),
            Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
            *routes(),
        ],
        middleware=[Middleware(Gate, settings=settings, callers=callers, tokens=FormTokens())],
        exception_handlers={
            MqError: _on_error,
            HTTPException: _on_http_error,
            Exception: _on_mistake,
        },
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.callers = callers
    app.state.failures = FailureLimit(time.monotonic)
    return app


async def _health(_: Request) -> Response:
    """Of the console itself: brokers have health checks of their own."""
    return PlainTextResponse("ok\n")


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MqError)  # noqa: S101 - as registered
    caller = request.scope["state"].get("caller")
    if isinstance(error, Unauthenticated) and caller is not None and caller.session is not None:
        # The key was revoked, or has expired.
        request.app.state.callers.sessions.end(caller.session)
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"hx-redirect": "/login"})
        return redirect("/login", "ended")
    return error_page(request, error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    return render(
        request,
        "error.html",
        error.status_code,
        title="Error",
        error=error.detail,
        code="",
        status=error.status_code,
    )


async def _on_mistake(request: Request, error: Exception) -> Response:
    log.error("a page failed by a mistake of the console: %s", request.url.path, exc_info=error)
    return error_page(request, Internal("the console made a mistake, its log says which"))
