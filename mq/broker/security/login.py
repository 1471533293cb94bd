"""Logins: a password is exchanged for a key of eight hours, which the client has made.

Checking a password is slow on purpose, so it is done by threads, two at a time; a few more logins
may wait, and the rest is refused at once. Logins are limited by the address that they come from and
by the user they are for, whether the user exists or not: all of them cost the same, and get the
same answer. A session is a credential like others: it is listed, and can be revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from mq.access import passwords
from mq.broker.security.audit import AuditTrail
from mq.broker.security.changes import AccessChanges, ChangeRequest, password_id
from mq.broker.state.access import Access
from mq.errors import FlowControl, IllegalRequest, Unauthenticated, UserNotFound
from mq.wire.v1.security_pb2 import SESSION_KEY, AccessChange, Credential

SESSION_MS = 8 * 3_600_000
CHECKED_AT_ONCE = 2
WAITING_MAX = 16
_BUSY_MS = 1_000
# Compared with where there is no password: no text has this hash.
_NO_PASSWORD = b"scrypt$16384$8$5$" + b"A" * 22 + b"==$" + b"A" * 43 + b"="
_USER_CHARACTERS_MAX = 255


class Rate(NamedTuple):
    burst: int
    refill_ms: int


BY_ADDRESS = Rate(burst=20, refill_ms=1_000)
BY_USER = Rate(burst=10, refill_ms=2_000)
# Callers choose users, and some of them addresses.
_BUCKETS_MAX = 10_000


class Buckets:
    """Token buckets by name, the least recently used first. One that is full is forgotten, and if
    there are too many, the oldest is.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        # When each would be full again.
        self._full_ms: dict[str, int] = {}

    def wait_ms(self, name: str, now_ms: int) -> int:
        """How long until the next token; 0: there is one."""
        burst, refill_ms = self._rate
        full_ms = self._full_ms.get(name, now_ms)
        return max(0, full_ms - now_ms - (burst - 1) * refill_ms)

    def take(self, name: str, now_ms: int) -> None:
        full_ms = max(self._full_ms.pop(name, now_ms), now_ms)
        self._full_ms[name] = full_ms + self._rate.refill_ms
        while self._full_ms:
            oldest = next(iter(self._full_ms))
            if self._full_ms[oldest] > now_ms and len(self._full_ms) <= _BUCKETS_MAX:
                return
            del self._full_ms[oldest]

    def give_back(self, name: str) -> None:
        if name in self._full_ms:
            self._full_ms[name] -= self._rate.refill_ms


class LoginCaller(NamedTuple):
    """The caller after a login; without a user if it failed."""

    user: str
    credential: str
    address: str


class Logins:
    def __init__(
        self,
        access: Access,
        changes: AccessChanges,
        audit: AuditTrail,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self._access = access
        self._changes = changes
        self._audit = audit
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._by_address = Buckets(BY_ADDRESS)
        self._by_user = Buckets(BY_USER)
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE)
        self._waiting = 0
        # Of all time.
        self.refused_total = 0
        self.limited_total = 0

    async def login(
        self, user: str, password: str, key_id: str, key_digest: bytes, address: str
    ) -> int:
        """Returns when the session expires; it is durable. Unauthenticated, FlowControl,
        IllegalRequest, and as `AccessChanges.change`.
        """
        if not 0 < len(user) <= _USER_CHARACTERS_MAX or len(password) > passwords.CHARACTERS_MAX:
            raise IllegalRequest("a login has the name of a user, and a password")
        source = _network(address)
        self._limit(user, source)
        stored = self._stored(user)
        self._waiting += 1
        try:
            async with self._checking:
                is_right = await asyncio.to_thread(
                    passwords.is_right, password, stored or _NO_PASSWORD
                )
        finally:
            self._waiting -= 1
        # It may have been changed meanwhile.
        if not is_right or stored is None or stored != self._stored(user):
            raise self._refusal(user, address)
        self._by_user.give_back(user)
        self._by_address.give_back(source)
        return await self._begin_session(user, key_id, key_digest, address)

    def _limit(self, user: str, source: str) -> None:
        now_ms = self._steady_ms()
        wait_ms = max(self._by_address.wait_ms(source, now_ms), self._by_user.wait_ms(user, now_ms))
        if not wait_ms and self._waiting >= CHECKED_AT_ONCE + WAITING_MAX:
            wait_ms = _BUSY_MS
        if wait_ms:
            self.limited_total += 1
            raise FlowControl(
                f"too many logins of this user or from this address: try again in {wait_ms} ms",
                wait_ms,
            )
        self._by_address.take(source, now_ms)
        self._by_user.take(user, now_ms)

    def _stored(self, user: str) -> bytes | None:
        found, credential = self._access.user(user), self._access.credential(password_id(user))
        if found is None or found.is_disabled or credential is None:
            return None
        if 0 < credential.expires_at_ms <= self._now_ms():
            return None
        return credential.proof

    def _refusal(self, user: str, address: str) -> Unauthenticated:
        self.refused_total += 1
        reason = "the user or the password is wrong"
        self._audit.refused(LoginCaller("", "", address), "login", f"user:{user}", reason)
        return Unauthenticated(reason)

    async def _begin_session(self, user: str, key_id: str, key_digest: bytes, address: str) -> int:
        expires_at_ms = self._now_ms() + SESSION_MS
        session = Credential(
            id=key_id, user=user, type=SESSION_KEY, proof=key_digest, expires_at_ms=expires_at_ms
        )
        by = LoginCaller(user, key_id, address)
        change = AccessChange(put_credential=session)
        try:
            await self._changes.change(ChangeRequest([change], by, internal="login"))
        except UserNotFound:
            raise self._refusal(user, address) from None
        return expires_at_ms


def _network(address: str) -> str:
    """An IPv6 client usually has a whole /64: it counts as one address."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(IPv6Address(int(found) >> 64 << 64))
    return address
