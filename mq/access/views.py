"""Users, credentials, policies, quotas and namespaces as the broker sets have them, and the changes
by which one set becomes as another is.

Sets are separate logs. Each has times of creation, sessions and a one-time token of its own, which
are not compared. What proves a credential is known only if it was asked for: otherwise, of one that
a set lacks only the record is known, and that it has another proof is seen by the digest alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from mq import names
from mq.errors import UserNotFound
from mq.wire.v1.security_pb2 import (
    SESSION_KEY,
    AccessChange,
    AccessNamespace,
    AccessPolicy,
    AccessState,
    Credential,
    DescribeAccessResponse,
    Quota,
    User,
)

# The user of the one-time token by which the first administrator of a set is made.
BOOTSTRAP_USER = "bootstrap"


class AccessView(NamedTuple):
    """Users, keys and policies of the broker sets, as one of them has them."""

    # The set whose records count: the one that was asked for, or that with the most changes.
    broker_set: str
    states: Mapping[str, AccessState]
    # Of all that sets have in common: the same in sets that agree.
    digests: Mapping[str, bytes]
    # Sets that did not answer.
    missing_sets: tuple[str, ...] = ()

    @property
    def state(self) -> AccessState:
        return self.states[self.broker_set]

    @property
    def differences(self) -> dict[str, list[AccessChange]]:
        """By the name of each set that differs: the changes that would make it the same. Without
        any, it has another proof of a credential, such as an older password.
        """
        found = {name: difference(self.state, one) for name, one in self.states.items()}
        digest = self.digests[self.broker_set]
        return {
            name: changes
            for name, changes in found.items()
            if changes or self.digests[name] != digest
        }

    def users(self, name: str) -> list[User]:
        """As each set has it that has it, this one first; so of all other records."""
        return self._found(_USERS, name)

    def user(self, name: str) -> User:
        """UserNotFound when no set has it, with the names that may have been meant."""
        for user in self.users(name):
            return user
        similar = names.similar_names(name, (one.name for one in self.state.users))
        raise UserNotFound(
            f"there is no user {name}: create it{names.did_you_mean(similar) or ' first'}"
        )

    def credentials(self, credential_id: str) -> list[Credential]:
        return self._found(_CREDENTIALS, credential_id)

    def credentials_of(self, user: str) -> list[Credential]:
        return [one for one in self.state.credentials if one.user == user]

    def policies(self, policy: AccessPolicy) -> list[AccessPolicy]:
        return self._found(_POLICIES, _POLICIES.key(policy))

    def policies_of(self, user: User) -> list[AccessPolicy]:
        """Its own, and those of its roles."""
        subjects = {f"user:{user.name}", *(f"role:{role}" for role in user.roles)}
        return [one for one in self.state.policies if one.subject in subjects]

    def quotas(self, subject: str) -> list[Quota]:
        return self._found(_QUOTAS, subject)

    def namespaces(self, name: str) -> list[AccessNamespace]:
        return self._found(_NAMESPACES, name)

    def _found(self, table: _Table, key: object) -> list[Any]:
        in_order = sorted(self.states, key=lambda name: (name != self.broker_set, name))
        tables = [table.records(self.states[name]) for name in in_order]
        return [one[key] for one in tables if key in one]


def view_of(
    answers: Mapping[str, DescribeAccessResponse],
    source: str = "",
    missing_sets: Iterable[str] = (),
) -> AccessView:
    """From `source`, or else from the set with the most changes: one that was away during some has
    fewer.
    """
    chosen = source or max(sorted(answers), key=lambda name: answers[name].state.version)
    states = {name: answers[name].state for name in sorted(answers)}
    digests = {name: answers[name].digest for name in states}
    return AccessView(chosen, states, digests, tuple(missing_sets))


def difference(wanted: AccessState, there: AccessState) -> list[AccessChange]:
    """The changes that make `there` as `wanted` is."""
    wanted, there = _shared(wanted), _shared(there)
    puts: list[AccessChange] = []
    drops: dict[_Table, list[AccessChange]] = {}
    for table in (_NAMESPACES, _USERS, _CREDENTIALS, _POLICIES, _QUOTAS):
        had, kept = table.records(there), table.records(wanted)
        puts += [table.put(one) for key, one in kept.items() if not _is_same(one, had.get(key))]
        drops[table] = [table.drop(one) for key, one in had.items() if key not in kept]
    # First what goes, since there may be no room for what comes; namespaces when no user has them.
    first = (_CREDENTIALS, _POLICIES, _QUOTAS, _USERS)
    return [one for table in first for one in drops[table]] + puts + drops[_NAMESPACES]


def unexpired(state: AccessState, now_ms: int) -> AccessState:
    """A copy without credentials that have expired, which no set takes any more."""
    copied = AccessState()
    copied.CopyFrom(state)
    del copied.credentials[:]
    copied.credentials.extend(
        one for one in state.credentials if not 0 < one.expires_at_ms <= now_ms
    )
    return copied


def is_copyable(change: AccessChange) -> bool:
    """Not if it puts a credential whose proof is not known."""
    return change.WhichOneof("kind") != "put_credential" or bool(change.put_credential.proof)


def _shared(state: AccessState) -> AccessState:
    """A copy without what each set has for itself."""
    users = [one for one in state.users if one.name != BOOTSTRAP_USER]
    credentials = [
        one for one in state.credentials if one.type != SESSION_KEY and one.user != BOOTSTRAP_USER
    ]
    return AccessState(
        users=users,
        credentials=credentials,
        policies=state.policies,
        quotas=state.quotas,
        namespaces=state.namespaces,
    )


def _is_same(wanted: Any, there: Any) -> bool:
    if there is None:
        return False
    untimed = type(wanted)()
    untimed.CopyFrom(wanted)
    if hasattr(untimed, "created_at_ms"):
        untimed.created_at_ms = there.created_at_ms
    return bool(untimed == there)


class _Table(NamedTuple):
    """The records of one kind: their field in a state, what a change calls one, and what tells them
    apart.
    """

    field: str
    kind: str
    key: Callable[[Any], Any]

    def records(self, state: AccessState) -> dict[Any, Any]:
        return {self.key(one): one for one in getattr(state, self.field)}

    def put(self, record: Any) -> AccessChange:
        return AccessChange(**{f"put_{self.kind}": record})

    def drop(self, record: Any) -> AccessChange:
        # A policy has no name of its own.
        dropped = record if self.kind == "policy" else self.key(record)
        return AccessChange(**{f"drop_{self.kind}": dropped})


_USERS = _Table("users", "user", attrgetter("name"))
_CREDENTIALS = _Table("credentials", "credential", attrgetter("id"))
_POLICIES = _Table("policies", "policy", attrgetter("subject", "line"))
_QUOTAS = _Table("quotas", "quota", attrgetter("subject"))
_NAMESPACES = _Table("namespaces", "namespace", attrgetter("name"))
