"""The gate: who makes a call, and whether it may.

A `Principal` is what a broker knows of a caller. It is made of the replicated users, keys and
policies (`mq.broker.state.access`) and holds for one version of them: after a change, and when its
credential expires, the gate makes another one. Streams outlive their principals: `live` keeps them,
and ends those whose credential is gone or which may no longer do what they began with, within the
turn that applies the change.

With `auth.mode = observe` nothing is refused: what would be is counted and told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mq import names
from mq.access import keys, policies
from mq.access.keys import ApiKey
from mq.access.policies import Action, Kind, Resource, Ruling, topic_resource
from mq.access.secrets import SecretBox, Signed
from mq.broker.state.access import SUPERUSER, Access
from mq.errors import MqError, PermissionDenied, Unauthenticated
from mq.wire.v1.security_pb2 import API_KEY, HMAC_SHA1, SESSION_KEY, Credential, User

# Brokers of one cluster greet each other, and read the log of their set to mend their own.
CLUSTER_USER: Final = "cluster"
LOG_AREA: Final = "log"
_BROKER_POLICIES: Final = [(CLUSTER_USER, policies.parse("allow alter cluster sets"))]
_BEARER: Final = "Bearer "
_KEYS: Final = frozenset((API_KEY, SESSION_KEY))
# Of one gate, and of one principal: callers choose the names.
_PRINCIPALS_MAX: Final = 10_000
_RULINGS_MAX: Final = 4_096

# One action on one resource, which a call has to be allowed.
Need: TypeAlias = tuple[Action, Resource]


@dataclass(slots=True, eq=False, repr=False)
class Principal:
    """A caller. It does not change, but remembers what was decided about it."""

    # Empty: anonymous.
    user: str = ""
    roles: tuple[str, ...] = ()
    # Those that it may choose from, and the one that this caller has chosen; empty: full names.
    namespaces: tuple[str, ...] = ()
    namespace: str = ""
    # The id of the credential, or the name in the certificate.
    credential: str = ""
    # Of a key, as it is stored: a key that was replaced under its id is another one.
    proof: bytes = b""
    # Without a port.
    address: str = ""
    # 0: it does not expire.
    expires_at_ms: int = 0
    # Of the users and policies that it was made of.
    version: int = 0
    is_superuser: bool = False
    # Another broker of the cluster.
    is_broker: bool = False
    # Topics that exist and that it may publish to: most calls ask for nothing else.
    publishes: set[str] = field(default_factory=set)
    _rulings: dict[tuple[str, str, str], Ruling] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Principal({self.user!r}, {self.credential!r}, {self.address!r})"

    def remembered(self, need: Need, decide: Callable[[], Ruling]) -> Ruling:
        action, (kind, name) = need
        key = action.value, kind.value, name
        found = self._rulings.get(key)
        if found is None:
            if len(self._rulings) >= _RULINGS_MAX:
                self._rulings.clear()
            found = self._rulings[key] = decide()
        return found


# The caller while authentication is off.
EVERYBODY: Final = Principal(is_superuser=True)
# The caller of a method that is open to all: its identity is not looked at.
ANYBODY: Final = Principal()
_SUPERUSER_RULING: Final = Ruling(is_allowed=True)
_OUTSIDE_RULING: Final = Ruling(is_allowed=False)


class Denial(NamedTuple):
    """A call that was refused, or would be."""

    principal: Principal
    # None: the caller is not known.
    need: Need | None
    reason: str
    is_enforced: bool


class LiveStream:
    """A stream with its caller. `end` is called once, on the loop."""

    __slots__ = ("_end", "needs", "principal")

    def __init__(self, principal: Principal, end: Callable[[MqError], None]) -> None:
        self.principal = principal
        # What it has to be allowed for as long as it lasts.
        self.needs: list[Need] = []
        self._end = end

    def end(self, error: MqError) -> None:
        self._end(error)


class Gate:
    def __init__(
        self,
        access: Access,
        mode: str,
        now_ms: Callable[[], int],
        tell: Callable[[Denial], None],
        is_cluster_key: Callable[[ApiKey], bool] = lambda _: False,
        box: SecretBox | None = None,
    ) -> None:
        """`is_cluster_key`: whether it is the key by which brokers of the cluster know each
        other. `box` opens the secrets of access keys; None: there are none.
        """
        self._access = access
        self.mode = mode
        self._now_ms = now_ms
        self._tell = tell
        self._is_cluster_key = is_cluster_key
        self._box = box
        # Secrets of access keys by their proof: each is decrypted once.
        self._secrets: dict[bytes, bytes | None] = {}
        self._known: dict[tuple[str | None, Sequence[str], str, str | None], Principal] = {}
        self._live: set[LiveStream] = set()
        self._changed = asyncio.Event()

    @property
    def is_off(self) -> bool:
        return self.mode == "off"

    @property
    def _is_enforced(self) -> bool:
        return self.mode == "required"

    # -- who is it --------------------------------------------------------------------------------

    def identify(
        self,
        authorization: str | None,
        certificate_names: Sequence[str],
        address: str,
        namespace: str | None = None,
    ) -> Principal:
        """Raises Unauthenticated if the caller is not known; while it only observes, such a caller
        is anonymous. PermissionDenied if it may not use this namespace; without a word on that, it
        has the first one of its user.
        """
        if self.is_off and namespace is None:
            return EVERYBODY
        key = authorization, certificate_names, address, namespace
        principal = self._known.get(key)
        if principal is None or not self.is_current(principal):
            try:
                principal = self._identified(authorization, certificate_names, address)
            except Unauthenticated as error:
                principal = Principal(address=address, version=self._access.version)
                self._deny(Denial(principal, None, str(error), self._is_enforced), error)
            self._enter_namespace(principal, namespace)
            if len(self._known) >= _PRINCIPALS_MAX:
                self._known.clear()
            self._known[key] = principal
        return principal

    def identify_signed(
        self, signed: Signed, date_time: str, address: str, namespace: str | None = None
    ) -> Principal:
        """As `identify`, of a caller that signed the time of its call with an access key. The age
        of that time is not looked at: clients write it in whatever zone they are in.
        """
        if self.is_off:
            return self.identify(None, (), address, namespace)
        credential = self._access.credential(signed.access_key)
        secret = self._secret(credential)
        user = None if credential is None else self._user_of(credential)
        is_right = secret is not None and signed.is_right(secret, date_time)
        if credential is None or user is None or not is_right:
            error = Unauthenticated(
                f"access key {signed.access_key} is not known, has expired, was revoked, its user "
                "is disabled, or the signature is wrong"
            )
            principal = Principal(address=address, version=self._access.version)
            self._deny(Denial(principal, None, str(error), self._is_enforced), error)
            return principal
        # Each call has a signature of its own: the caller is known by what it was signed with.
        key = f"{signed.access_key}:{credential.proof.hex()}", (), address, namespace
        known = self._known.get(key)
        if known is None or not self.is_current(known):
            known = self._principal(
                user,
                address,
                credential=credential.id,
                proof=credential.proof,
                expires_at_ms=credential.expires_at_ms,
            )
            self._enter_namespace(known, namespace)
            if len(self._known) >= _PRINCIPALS_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def _secret(self, credential: Credential | None) -> bytes | None:
        """Of an access key; None: it is none, or cannot be decrypted here."""
        if credential is None or credential.type != HMAC_SHA1 or self._box is None:
            return None
        proof = credential.proof
        if proof not in self._secrets:
            if len(self._secrets) >= _PRINCIPALS_MAX:
                self._secrets.clear()
            self._secrets[proof] = self._box.opened(proof, credential.id)
        return self._secrets[proof]

    def is_current(self, principal: Principal) -> bool:
        """Whether it may go on to be used: False after a change of users or policies, and when its
        credential has expired.
        """
        return self.is_off or (
            principal.version == self._access.version
            and not 0 < principal.expires_at_ms <= self._now_ms()
        )

    def _enter_namespace(self, principal: Principal, namespace: str | None) -> None:
        """Chooses the namespace of a principal that is not in use yet. Raises PermissionDenied, or
        IllegalRequest if there can be no such namespace.
        """
        allowed = principal.namespaces or ("",)
        principal.namespace = allowed[0] if namespace is None else namespace
        if principal.namespace in allowed:
            return
        # One who may do everything may look at it from inside of any namespace.
        if not principal.is_superuser or principal.namespaces:
            self._deny_namespace(principal)
        if principal.namespace:
            names.check_namespace(principal.namespace)

    def _deny_namespace(self, principal: Principal) -> None:
        who = f"user {principal.user}" if principal.user else "an anonymous caller"
        error = PermissionDenied(
            f"{who} may not use namespace {principal.namespace[:200]!r}, but "
            f"{' or '.join(principal.namespaces) or 'none at all'}"
        )
        need = Action.DESCRIBE, Resource(Kind.CLUSTER, "namespaces")
        self._deny(Denial(principal, need, str(error), self._is_enforced), error)

    def _identified(
        self, authorization: str | None, certificate_names: Sequence[str], address: str
    ) -> Principal:
        if self.is_off:
            return Principal(is_superuser=True)
        if authorization is not None:
            return self._of_key(authorization, address)
        for name in certificate_names:
            user = self._access.user(name)
            if user is not None and not user.is_disabled:
                return self._principal(user, address, credential=name)
        if certificate_names:
            raise Unauthenticated(
                f"no user is called {certificate_names[0][:200]!r}, as the certificate of this "
                "connection says: create the user, or send a key"
            )
        raise Unauthenticated(
            "this broker wants to know its callers: send a key as metadata, authorization: "
            "Bearer mqk_..., or connect with a certificate"
        )

    def _of_key(self, authorization: str, address: str) -> Principal:
        key = keys.parse(authorization.removeprefix(_BEARER))
        if key is None or not authorization.startswith(_BEARER):
            raise Unauthenticated("authorization is not of the form Bearer mqk_<id>_<secret>")
        if self._is_cluster_key(key):
            return Principal(
                CLUSTER_USER,
                credential=key.id,
                address=address,
                version=self._access.version,
                is_broker=True,
            )
        credential = self._access.credential(key.id)
        # One text for all: which of them it was would help to guess.
        refusal = Unauthenticated(
            f"key {key.id} is not known, has expired, was revoked, or its user is disabled"
        )
        if credential is None or credential.type not in _KEYS:
            raise refusal
        if not keys.is_right(key.secret, credential.proof):
            raise refusal
        user = self._user_of(credential)
        if user is None:
            raise refusal
        return self._principal(
            user,
            address,
            credential=credential.id,
            proof=credential.proof,
            expires_at_ms=credential.expires_at_ms,
        )

    def _user_of(self, credential: Credential) -> User | None:
        """None: it has expired, or its user may not come in."""
        if 0 < credential.expires_at_ms <= self._now_ms():
            return None
        user = self._access.user(credential.user)
        return None if user is None or user.is_disabled else user

    def _principal(
        self,
        user: User,
        address: str,
        *,
        credential: str,
        proof: bytes = b"",
        expires_at_ms: int = 0,
    ) -> Principal:
        return Principal(
            user.name,
            tuple(user.roles),
            tuple(user.namespaces),
            credential=credential,
            proof=proof,
            address=address,
            expires_at_ms=expires_at_ms,
            version=self._access.version,
            is_superuser=SUPERUSER in user.roles,
        )

    # -- what may it do ---------------------------------------------------------------------------

    def ruling(self, principal: Principal, action: Action, resource: Resource) -> Ruling:
        """Also of what is not enforced."""
        if principal.namespace and not _is_inside(principal.namespace, resource):
            return _OUTSIDE_RULING
        if principal.is_superuser:
            return _SUPERUSER_RULING
        return principal.remembered(
            (action, resource), lambda: self._decide(principal, action, resource)
        )

    def _decide(self, principal: Principal, action: Action, resource: Resource) -> Ruling:
        if principal.is_broker:
            return policies.decide(_BROKER_POLICIES, action, resource)
        user = self._access.user(principal.user)
        lines = self._access.policies_of(user) if user is not None else ()
        return policies.decide(lines, action, resource, principal.address)

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        """Without a word to anybody: for lists, which show what may be seen."""
        if self._is_enforced:
            return self.ruling(principal, action, resource).is_allowed
        return not principal.namespace or _is_inside(principal.namespace, resource)

    def check(self, principal: Principal, action: Action, resource: Resource) -> None:
        """Raises PermissionDenied."""
        ruling = self.ruling(principal, action, resource)
        if not ruling.is_allowed:
            self.deny(principal, (action, resource), ruling)

    def check_all(self, principal: Principal, needs: Iterable[Need]) -> None:
        if not principal.is_superuser:
            for need in needs:
                self.check(principal, *need)

    def check_superuser(self, principal: Principal, what: str, *, always: bool = False) -> None:
        """`always`: also while it only observes."""
        is_mending = principal.is_broker and what == LOG_AREA
        if not principal.is_superuser and not is_mending:
            resource = Resource(Kind.CLUSTER, what)
            self.deny(principal, (Action.DESCRIBE, resource), None, always=always)

    def check_publish(self, principal: Principal, topic: str, *, is_new: bool) -> None:
        """Of a batch. `is_new`: there is no such topic, and it would be created."""
        if principal.is_superuser or (topic in principal.publishes and not is_new):
            return
        resource = topic_resource(topic)
        self.check(principal, Action.PUBLISH, resource)
        if is_new:
            self.check(principal, Action.CREATE, resource)
        elif self.ruling(principal, Action.PUBLISH, resource).is_allowed:
            if len(principal.publishes) >= _RULINGS_MAX:
                principal.publishes.clear()
            principal.publishes.add(topic)

    def deny(
        self, principal: Principal, need: Need, ruling: Ruling | None, *, always: bool = False
    ) -> None:
        """Raises PermissionDenied, or only tells of it."""
        action, resource = need
        who = f"user {principal.user}" if principal.user else "an anonymous caller"
        if ruling is None:
            reason = f"{resource} is for superusers"
        elif ruling is _OUTSIDE_RULING:
            # The text must not name what other namespaces have.
            reason = f"this is not in namespace {principal.namespace}"
        elif ruling.policy is None:
            reason = f"no policy allows {who} to {action} {resource}"
        else:
            reason = f"{who} may not {action} {resource}: {ruling.subject} has {ruling.policy}"
        is_enforced = always or self._is_enforced
        self._deny(Denial(principal, need, reason, is_enforced), PermissionDenied(reason))

    def _deny(self, denial: Denial, error: MqError) -> None:
        self._tell(denial)
        if denial.is_enforced:
            raise error

    # -- streams ----------------------------------------------------------------------------------

    def enter(self, principal: Principal, end: Callable[[MqError], None]) -> LiveStream:
        stream = LiveStream(principal, end)
        if not self.is_off:
            self._live.add(stream)
        return stream

    def leave(self, stream: LiveStream) -> None:
        self._live.discard(stream)

    def on_change(self) -> None:
        """Users, keys or policies are others now."""
        self._known.clear()
        self._changed.set()
        self._changed = asyncio.Event()
        for stream, error in self._refused([*self._live]):
            self._live.discard(stream)
            stream.end(error)

    async def changes_within(self, seconds: float) -> bool:
        """Returns whether users, keys or policies changed in that time, as soon as they do."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def tick(self) -> None:
        """A few times a second: credentials expire."""
        expired = [one for one in self._live if not self.is_current(one.principal)]
        for stream, error in self._refused(expired):
            self._live.discard(stream)
            stream.end(error)

    def _refused(self, streams: Iterable[LiveStream]) -> Iterator[tuple[LiveStream, MqError]]:
        for stream in streams:
            try:
                renewed = self._renewed(stream.principal)
                if renewed is not stream.principal:
                    self._enter_namespace(renewed, stream.principal.namespace)
                stream.principal = renewed
                self.check_all(stream.principal, stream.needs)
            except (Unauthenticated, PermissionDenied) as error:
                yield stream, error

    def _renewed(self, principal: Principal) -> Principal:
        """The same caller under the users and policies of now. Raises Unauthenticated if its
        credential is gone.
        """
        if self.is_current(principal):
            return principal
        version, address = self._access.version, principal.address
        if not principal.credential:
            return Principal(address=address, version=version)
        if not principal.proof:
            user = self._access.user(principal.user)
            if user is not None and not user.is_disabled:
                return self._principal(user, address, credential=principal.credential)
        else:
            credential = self._access.credential(principal.credential)
            if credential is not None and credential.proof == principal.proof:
                user = self._user_of(credential)
                if user is not None:
                    return self._principal(
                        user,
                        address,
                        credential=credential.id,
                        proof=credential.proof,
                        expires_at_ms=credential.expires_at_ms,
                    )
        error = Unauthenticated(
            f"the credential {principal.credential} of user {principal.user} was revoked, or has "
            "expired"
        )
        self._deny(Denial(principal, None, str(error), self._is_enforced), error)
        return Principal(address=address, version=version)


def _is_inside(namespace: str, resource: Resource) -> bool:
    """Resources of the cluster are in no namespace: policies decide."""
    return resource.kind == Kind.CLUSTER or names.namespace_of(resource.name) == namespace
