"""Users, credentials, policies, quotas and namespaces: part of the replicated state.

Records come as they were made before the proposal: with their hashes, ids and times. Nothing here
is secret but `Credential.proof`, which leaves the node in checkpoints alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from mq.access import policies
from mq.access.policies import Policy
from mq.errors import IllegalPolicy
from mq.wire.v1.security_pb2 import (
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


class Access:
    def __init__(self) -> None:
        self._clear()
        # Changes since the beginning: the same on every replica.
        self.change_count = 0
        # Goes up with every change here: what was derived from this asks again then.
        self.version = 0

    def _clear(self) -> None:
        self._users: dict[str, User] = {}
        self._credentials: dict[str, Credential] = {}
        # The lines of each subject, in their one spelling.
        self._policies: dict[str, dict[str, Policy]] = {}
        self._quotas: dict[str, Quota] = {}
        self._namespaces: dict[str, AccessNamespace] = {}

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def credential(self, credential_id: str) -> Credential | None:
        return self._credentials.get(credential_id)

    def credentials_of(self, user: str) -> Iterator[Credential]:
        return (one for one in self._credentials.values() if one.user == user)

    def quota(self, subject: str) -> Quota | None:
        return self._quotas.get(subject)

    def namespace(self, name: str) -> AccessNamespace | None:
        return self._namespaces.get(name)

    def has_superuser(self) -> bool:
        """Without one, this set has never been set up."""
        return any(SUPERUSER in one.roles for one in self._users.values())

    def policies_of(self, user: User) -> Iterator[tuple[str, Policy]]:
        """The user's own lines and those of its roles, each with its subject."""
        for subject in (f"user:{user.name}", *(f"role:{role}" for role in user.roles)):
            for policy in self._policies.get(subject, {}).values():
                yield subject, policy

    def digest(self) -> bytes:
        """Of everything but the version: the same in broker sets that agree."""
        state = self.encode()
        state.version = 0
        return hashlib.sha256(state.SerializeToString(deterministic=True)).digest()

    # -- applying ---------------------------------------------------------------------------------

    def change(self, changes: Iterable[AccessChange]) -> None:
        for one in changes:
            kind = one.WhichOneof("kind")
            if kind is not None:
                getattr(self, f"_{kind}")(getattr(one, kind))
        self.change_count += 1
        self.version += 1

    def _put_user(self, user: User) -> None:
        self._users[user.name] = _copy(user)

    def _drop_user(self, name: str) -> None:
        self._users.pop(name, None)
        self._credentials = {key: one for key, one in self._credentials.items() if one.user != name}
        self._policies.pop(f"user:{name}", None)
        self._quotas.pop(f"user:{name}", None)

    def _put_credential(self, credential: Credential) -> None:
        # A user may have been dropped by a change that came before this one.
        if credential.user in self._users:
            self._credentials[credential.id] = _copy(credential)

    def _drop_credential(self, credential_id: str) -> None:
        self._credentials.pop(credential_id, None)

    def _put_policy(self, record: AccessPolicy) -> None:
        try:
            policy = policies.parse(record.line)
        except IllegalPolicy:
            return  # no leader proposes such a line
        self._policies.setdefault(record.subject, {})[str(policy)] = policy

    def _drop_policy(self, record: AccessPolicy) -> None:
        lines = self._policies.get(record.subject, {})
        lines.pop(record.line, None)
        if not lines:
            self._policies.pop(record.subject, None)

    def _put_quota(self, quota: Quota) -> None:
        self._quotas[quota.subject] = _copy(quota)

    def _drop_quota(self, subject: str) -> None:
        self._quotas.pop(subject, None)

    def _put_namespace(self, namespace: AccessNamespace) -> None:
        self._namespaces[namespace.name] = _copy(namespace)

    def _drop_namespace(self, name: str) -> None:
        self._namespaces.pop(name, None)
        self._quotas.pop(f"namespace:{name}", None)

    # -- checkpoints ------------------------------------------------------------------------------

    def encode(self) -> AccessState:
        """Same state, same bytes."""
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
        self._users = {one.name: _copy(one) for one in state.users}
        self._credentials = {one.id: _copy(one) for one in state.credentials}
        for record in state.policies:
            self._put_policy(record)
        self._quotas = {one.subject: _copy(one) for one in state.quotas}
        self._namespaces = {one.name: _copy(one) for one in state.namespaces}
        self.change_count = state.version
        self.version += 1


def _sorted(records: dict[str, Any]) -> list[Any]:
    return [one for _, one in sorted(records.items())]


def _copy(record: Any) -> Any:
    """A record of its own: one in a command or a checkpoint would keep all of that in memory."""
    copied = type(record)()
    copied.CopyFrom(record)
    return copied
