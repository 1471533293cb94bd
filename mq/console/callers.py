"""Callers: the clients that act for one user, with that user's key and no other.

Without a key a caller is whoever the brokers take it for: with `auth.mode = off` everybody. What a
caller may do is asked of the brokers, for pages to leave out buttons; the brokers decide again when
one is pressed. A sampler is shared by the sessions of its user, and takes a key of any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from mq.access.policies import Action, Kind, Resource
from mq.client.aio import Admin, Producer, PullConsumer
from mq.console.queue_spans import QueueSpans
from mq.console.sampler import Sampler
from mq.console.sessions import Session, Sessions
from mq.console.settings import ConsoleSettings
from mq.console.shared_reads import SharedReads
from mq.errors import MqError, Unauthenticated, Unreachable

SUPERUSER = "superuser"
REQUIRED = "required"

# How long an answer to "may I" and "who must sign in" is used.
_RIGHTS_S = 10.0
_MODE_S = 5.0
_RIGHTS_MAX = 2_000


class Caller:
    """The clients of one session, or of everybody. `session` is None for the latter."""

    def __init__(self, settings: ConsoleSettings, session: Session | None, sampler: Sampler):
        self._settings = settings
        self.session = session
        self.sampler = sampler
        self._rights: dict[tuple[Action, Resource], tuple[float, bool]] = {}
        self._arguments = arguments(settings, session.key if session is not None else None)
        self.admin = Admin(**self._arguments, timeout_s=settings.timeout_s)
        self._pull: PullConsumer | None = None
        self._producer: Producer | None = None
        self.spans = QueueSpans(lambda: self.pull)
        self.reads = SharedReads(lambda: self.pull)
        # Live tails of this caller.
        self.tails = 0

    @property
    def user(self) -> str:
        return self.session.user if self.session is not None else ""

    @property
    def pull(self) -> PullConsumer:
        if self._pull is None:
            self._pull = PullConsumer(**self._arguments)
        return self._pull

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(**self._arguments, timeout_s=self._settings.timeout_s)
        return self._producer

    async def may(self, action: Action, kind: Kind, name: str) -> bool:
        """Whether a page shows the button. If the brokers do not say, it does not."""
        if self.session is None or SUPERUSER in self.session.roles:
            return True
        key = action, Resource(kind, name)
        known = self._rights.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        try:
            rulings = await self.admin.check_access(self.user, action, key[1])
            is_allowed = bool(rulings) and all(one.is_allowed for one in rulings.values())
        except Unauthenticated:
            raise
        except MqError:
            return False
        if len(self._rights) >= _RIGHTS_MAX:
            self._rights.clear()
        self._rights[key] = time.monotonic() + _RIGHTS_S, is_allowed
        return is_allowed

    async def close(self) -> None:
        for client in (self._producer, self._pull, self.admin):
            if client is not None:
                with contextlib.suppress(MqError):
                    await client.close()


class Callers:
    """All callers of a console, and the sessions that they belong to."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_sessions: dict[str, Caller] = {}
        self._samplers: dict[str, tuple[Sampler, asyncio.Task[None], Admin]] = {}
        self.sessions = Sessions(time.monotonic, self._ended)
        self._mode, self._mode_until_s = "", 0.0
        self._everybody: Caller | None = None

    async def auth_mode(self) -> str:
        """off, observe or required. Unreachable when no broker says it."""
        if time.monotonic() < self._mode_until_s:
            return self._mode
        async with Admin(
            **arguments(self._settings, None), timeout_s=self._settings.timeout_s
        ) as asking:
            try:
                known = await asking.who_am_i()
            except Unauthenticated:
                self._mode = REQUIRED
            else:
                modes = {one.auth_mode or "off" for one in known.values()}
                # One set that asks who comes is enough reason to sign in.
                self._mode = REQUIRED if REQUIRED in modes else next(iter(modes), "off")
        self._mode_until_s = time.monotonic() + _MODE_S
        return self._mode

    async def everybody(self) -> Caller | None:
        """The caller of those who did not sign in; None if they have to. Unreachable."""
        if await self.auth_mode() == REQUIRED:
            return None
        if not (self._settings.is_loopback or self._settings.is_open):
            raise Unreachable(
                "this console serves other machines, and its brokers ask nobody who they are any "
                "more: let it listen on 127.0.0.1, or start it with --open"
            )
        if self._everybody is None:
            sampler = self._sampler("", lambda: "")
            self._everybody = Caller(self._settings, None, sampler)
        return self._everybody

    async def begin(self) -> None:
        """Without a login, samples from the start: the first page finds what was before it."""
        while True:
            with contextlib.suppress(MqError):
                await self.everybody()
                return
            await asyncio.sleep(self._settings.sample_s)

    def of(self, session: Session) -> Caller:
        caller = self._of_sessions.get(session.id)
        if caller is None:
            sampler = self._sampler(session.user, lambda: self._key_of(session))
            caller = self._of_sessions[session.id] = Caller(self._settings, session, sampler)
        return caller

    def _key_of(self, first: Session) -> str:
        """Of the session of this user that was used last; of a new user, the first one."""
        found = [
            one.session
            for one in self._of_sessions.values()
            if one.session is not None and one.session.user == first.user
        ]
        return max(found, key=lambda one: one.seen_s, default=first).key

    def _sampler(self, user: str, key: Callable[[], str]) -> Sampler:
        known = self._samplers.get(user)
        if known is not None:
            return known[0]
        admin = Admin(
            **arguments(self._settings, key if user else None), timeout_s=self._settings.timeout_s
        )
        sampler = Sampler(admin, self._settings.sample_s)
        self._samplers[user] = sampler, asyncio.create_task(sampler.run()), admin
        return sampler

    def _ended(self, session: Session) -> None:
        caller = self._of_sessions.pop(session.id, None)
        if caller is not None:
            self._later(caller.close())
        users = {one.user for one in self._of_sessions.values()}
        if session.user not in users and session.user in self._samplers:
            _, task, admin = self._samplers.pop(session.user)
            task.cancel()
            self._later(admin.close())

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for _, task, admin in self._samplers.values():
            task.cancel()
            await admin.close()
        callers = [*self._of_sessions.values(), *([self._everybody] if self._everybody else [])]
        for caller in callers:
            await caller.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def arguments(settings: ConsoleSettings, key: str | Callable[[], str] | None) -> dict[str, Any]:
    """Of a client that presents this key."""
    found: dict[str, Any] = {"servers": settings.servers, **settings.security}
    if key is not None:
        found["api_key"] = key
    return found
