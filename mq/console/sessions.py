"""Sessions of signed-in users, in the memory of this process, and the limit of failed logins.

A cookie holds a random id and nothing else; the key of the user stays here. Sessions end after
an hour without a request, with their key, or when there are too many: the one that was idle the
longest goes first. Time is monotonic and handed in, so that nothing here reads a clock.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

SESSIONS_MAX = 500
IDLE_S = 3600.0
LIFETIME_S = 8 * 3600.0

# Failed logins of one address, or for one user, in this time.
FAILURES_MAX = 8
FAILURES_S = 60.0
_KNOWN_MAX = 10_000


@dataclass(slots=True)
class Session:
    id: str
    user: str
    key: str = field(repr=False)
    ends_s: float
    seen_s: float
    roles: tuple[str, ...] = ()


class Sessions:
    """`on_end` is called with each session that has ended, for whatever reason."""

    def __init__(self, now_s: Callable[[], float], on_end: Callable[[Session], None]) -> None:
        self._now_s = now_s
        self._on_end = on_end
        # The one that was idle the longest comes first.
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, user: str, key: str, *, roles: tuple[str, ...] = (), lasts_s: float = LIFETIME_S
    ) -> Session:
        self.expire()
        while len(self._sessions) >= SESSIONS_MAX:
            self._on_end(self._sessions.popitem(last=False)[1])
        now = self._now_s()
        session = Session(
            new_id(), user, key, ends_s=now + min(lasts_s, LIFETIME_S), seen_s=now, roles=roles
        )
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str) -> Session | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if self._is_over(session):
            self.end(session)
            return None
        session.seen_s = self._now_s()
        self._sessions.move_to_end(session_id)
        return session

    def end(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._on_end(session)

    def expire(self) -> None:
        for session in [one for one in self._sessions.values() if self._is_over(one)]:
            self.end(session)

    def _is_over(self, session: Session) -> bool:
        now = self._now_s()
        return now >= session.ends_s or now >= session.seen_s + IDLE_S


def new_id() -> str:
    return secrets.token_urlsafe(32)


class FormTokens:
    """Tokens of forms: each belongs to the cookie of its browser, and nothing is stored. The secret
    is of this process, so forms do not outlive it.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, session_id: str) -> str:
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    def is_right(self, session_id: str, token: str) -> bool:
        return bool(session_id) and hmac.compare_digest(
            self.of(session_id).encode(), token.encode()
        )


class FailureLimit:
    """Counts failures by name; a name that has failed too often lately has reached the limit."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def is_reached(self, name: str) -> bool:
        times = self._failures.get(name)
        if times is None:
            return False
        while times and times[0] <= self._now_s() - FAILURES_S:
            times.popleft()
        return len(times) >= FAILURES_MAX

    def note(self, name: str) -> None:
        times = self._failures.setdefault(name, deque(maxlen=FAILURES_MAX))
        times.append(self._now_s())
        self._failures.move_to_end(name)
        while len(self._failures) > _KNOWN_MAX:
            self._failures.popitem(last=False)
