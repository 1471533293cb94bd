"""Users, credentials, policies, quotas and namespaces: part of the replicated state.

Records come as they were made before the proposal: with their hashes, ids and times. Nothing here
is secret but `Credential.proof`, which leaves the node in checkpoints alone. A record that is here
is never changed but replaced, so that a fork shares all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from mq.access import policies
from mq.access.policies import Policy
from mq.errors import IllegalPolicy
from mq.wire.v1.security_pb2 import (
    API_KEY,
    PASSWORD,
    SESSION_KEY,
    AccessChange,
    AccessNamespace,
    AccessPolicy,
    AccessState,
    Credential,
    Quota,
    User,
)

SUPERUSER = "superuser"
DEFAULT_QUOTA = "default"
# The user of the one-time token; it goes when the token has made a superuser.
BOOTSTRAP_USER = "bootstrap"
_HASH_BITS = 256

_Record: TypeAlias = User | Credential | AccessPolicy | Quota | AccessNamespace


class Access:
    def __init__(self) -> None:
        self._clear()
        # Changes since the beginning: the same on every replica.
        self.change_count = 0
        # Goes up with every change here: what was derived from this asks again then.
        self.version = 0
        # As it is in checkpoints, and of which version.
        self._encoded = 0, AccessState()

    def _clear(self) -> None:
        self._users: dict[str, User] = {}
        self._superusers: frozenset[str] = frozenset()
        self._credentials: dict[str, Credential] = {}
        # Their ids, by user.
        self._ids: dict[str, frozenset[str]] = {}
        # The lines of each subject, in their one spelling.
        self._policies: dict[str, dict[str, Policy]] = {}
        self._policy_count = 0
        self._quotas: dict[str, Quota] = {}
        self._namespaces: dict[str, AccessNamespace] = {}
        # The sum of the hashes of all records that broker sets share.
        self._checksum = 0

    def fork(self) -> Access:
        """Another one of the same content, which can be changed without an effect here."""
        other = Access()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict) else value)
        return other

    # -- questions --------------------------------------------------------------------------------

    @property
    def users(self) -> Mapping[str, User]:
        return self._users

    @property
    def quotas(self) -> Mapping[str, Quota]:
        return self._quotas

    @property
    def namespaces(self) -> Mapping[str, AccessNamespace]:
        return self._namespaces

    @property
    def credential_count(self) -> int:
        return len(self._credentials)

    @property
    def policy_count(self) -> int:
        return self._policy_count

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def credential(self, credential_id: str) -> Credential | None:
        return self._credentials.get(credential_id)

    def credentials_of(self, user: str) -> Iterator[Credential]:
        """By their ids."""
        return (self._credentials[one] for one in sorted(self._ids.get(user, ())))

    def quota(self, subject: str) -> Quota | None:
        return self._quotas.get(subject)

    def namespace(self, name: str) -> AccessNamespace | None:
        return self._namespaces.get(name)

    def superusers(self) -> Collection[str]:
        """Those that are not disabled; without the one of the one-time token."""
        return self._superusers

    def has_superuser(self) -> bool:
        """One that can come in by a key or a password. Without one, this set was never set up."""
        return any(map(self._has_way_in, self._superusers))

    def _has_way_in(self, user: str) -> bool:
        return any(one.type in (API_KEY, PASSWORD) for one in self.credentials_of(user))

    def lines_of(self, subject: str) -> Mapping[str, Policy]:
        """The policies of a user or role, by their one spelling."""
        return self._policies.get(subject, {})

    def policies_of(self, user: User) -> Iterator[tuple[str, Policy]]:
        """The user's own lines and those of its roles, each with its subject."""
        for subject in (f"user:{user.name}", *(f"role:{role}" for role in user.roles)):
            for policy in self.lines_of(subject).values():
                yield subject, policy

    def digest(self) -> bytes:
        """Of what broker sets share: the same in sets that agree. That is everything but the
        version, the times of creation, sessions, and the one-time token.
        """
        return self._checksum.to_bytes(_HASH_BITS // 8, "big")

    # -- applying ---------------------------------------------------------------------------------

    def change(self, changes: Iterable[AccessChange]) -> None:
        put: set[str] = set()
        for one in changes:
            kind = one.WhichOneof("kind")
            if kind is not None:
                getattr(self, f"_{kind}")(getattr(one, kind))
            if kind in ("put_user", "put_credential"):
                put.add(one.put_user.name or one.put_credential.user)
        if BOOTSTRAP_USER in self._users and any(map(self._has_way_in, put & self._superusers)):
            self._drop_user(BOOTSTRAP_USER)
        self.change_count += 1
        self.version += 1

    def _put_user(self, user: User) -> None:
        self._replace(self._users, user.name, _copy(user))
        is_super = SUPERUSER in user.roles and not user.is_disabled and user.name != BOOTSTRAP_USER
        self._superusers -= {user.name}
        self._superusers |= {user.name} if is_super else frozenset()

    def _drop_user(self, name: str) -> None:
        self._replace(self._users, name, None)
        self._superusers -= {name}
        for one in self._ids.get(name, ()):
            self._drop_credential(one)
        for line in self.lines_of(f"user:{name}"):
            self._drop_policy(AccessPolicy(subject=f"user:{name}", line=line))
        self._drop_quota(f"user:{name}")

    def _put_credential(self, credential: Credential) -> None:
        # A user may have been dropped by a change that came before this one.
        if credential.user in self._users:
            self._drop_credential(credential.id)
            self._replace(self._credentials, credential.id, _copy(credential))
            known = self._ids.get(credential.user, frozenset())
            self._ids[credential.user] = known | {credential.id}

    def _drop_credential(self, credential_id: str) -> None:
        found = self._replace(self._credentials, credential_id, None)
        if found is not None:
            left = self._ids[found.user] - {credential_id}
            if left:
                self._ids[found.user] = left
            else:
                del self._ids[found.user]

    def _put_policy(self, record: AccessPolicy) -> None:
        policy = _parsed(record.line)
        lines, line = self.lines_of(record.subject), str(policy)
        if policy is not None and line not in lines:
            self._policies[record.subject] = {**lines, line: policy}
            self._policy_count += 1
            self._count(AccessPolicy(subject=record.subject, line=line), 1)

    def _drop_policy(self, record: AccessPolicy) -> None:
        lines, line = dict(self.lines_of(record.subject)), str(_parsed(record.line))
        if lines.pop(line, None) is None:
            return
        self._policy_count -= 1
        self._count(AccessPolicy(subject=record.subject, line=line), -1)
        if lines:
            self._policies[record.subject] = lines
        else:
            del self._policies[record.subject]

    def _put_quota(self, quota: Quota) -> None:
        self._replace(self._quotas, quota.subject, _copy(quota))

    def _drop_quota(self, subject: str) -> None:
        self._replace(self._quotas, subject, None)

    def _put_namespace(self, namespace: AccessNamespace) -> None:
        self._replace(self._namespaces, namespace.name, _copy(namespace))

    def _drop_namespace(self, name: str) -> None:
        self._replace(self._namespaces, name, None)
        self._drop_quota(f"namespace:{name}")

    def _replace(self, records: dict[str, Any], name: str, record: Any) -> Any:
        """None: there is none from now on. Returns the one before."""
        before = records.pop(name, None)
        if before is not None:
            self._count(before, -1)
        if record is not None:
            records[name] = record
            self._count(record, 1)
        return before

    def _count(self, record: _Record, sign: int) -> None:
        self._checksum = (self._checksum + sign * _hash(record)) % (1 << _HASH_BITS)

    # -- checkpoints ------------------------------------------------------------------------------

    def encode(self) -> AccessState:
        """Same state, same bytes. Made once a version: do not change it."""
        if self._encoded[0] != self.version:
            self._encoded = self.version, self._encode()
        return self._encoded[1]

    def _encode(self) -> AccessState:
        return AccessState(
            users=_sorted(self._users),
            credentials=_sorted(self._credentials),
            policies=[
                AccessPolicy(subject=subject, line=line)
                for subject, lines in sorted(self._policies.items())
                for line in sorted(lines)
            ],
            quotas=_sorted(self._quotas),
            namespaces=_sorted(self._namespaces),
            version=self.change_count,
        )

    def restore(self, state: AccessState) -> None:
        self._clear()
        for user in state.users:
            self._put_user(user)
        for credential in state.credentials:
            self._put_credential(credential)
        for record in state.policies:
            self._put_policy(record)
        for quota in state.quotas:
            self._put_quota(quota)
        for namespace in state.namespaces:
            self._put_namespace(namespace)
        self.change_count = state.version
        self.version += 1


def _parsed(line: str) -> Policy | None:
    """Entries may have another spelling than the one of now. No leader proposes what is no
    policy.
    """
    try:
        return policies.parse(line)
    except IllegalPolicy:
        return None


def _sorted(records: dict[str, Any]) -> list[Any]:
    return [one for _, one in sorted(records.items())]


def _copy(record: Any) -> Any:
    """A record of its own: one in a command or a checkpoint would keep all of that in memory."""
    copied = type(record)()
    copied.CopyFrom(record)
    return copied


def _hash(record: Any) -> int:
    """0 for what each broker set has for itself."""
    if isinstance(record, Credential) and record.type == SESSION_KEY:
        return 0
    owner = record.user if isinstance(record, Credential) else getattr(record, "name", "")
    if owner == BOOTSTRAP_USER and isinstance(record, (User, Credential)):
        return 0
    shared = _copy(record)
    if hasattr(shared, "created_at_ms"):
        shared.created_at_ms = 0
    data = shared.SerializeToString(deterministic=True)
    return int.from_bytes(hashlib.sha256(type(record).__name__.encode() + b":" + data).digest())
