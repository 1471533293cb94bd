"""Changes of users, credentials, policies, quotas and namespaces: checked here, made by applying a
command, and recorded in the audit trail by the same entry.

A request is all or nothing. Its changes are tried in order on a fork of the applied state, so that
a later one may build on an earlier one, and brought into their final form: policies in their one
spelling, times of creation, secrets encrypted. Applying reads no clock and chooses nothing.

To drop what is not there, or to put what is there already, is no error and no change: the admin
client sends the same changes to all broker sets, and again to those of which it has no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mq import names
from mq.access import passwords, policies
from mq.access.secrets import SECRET_BYTES_MAX, SecretBox
from mq.broker.batched_decider import BatchedDecider, TurnDecision
from mq.broker.leading import Leadership
from mq.broker.security.audit import AuditTrail, Caller, Record
from mq.broker.security.gate import CLUSTER_USER
from mq.broker.state.access import BOOTSTRAP_USER, DEFAULT_QUOTA, SUPERUSER, Access
from mq.broker.state.machine import Machine
from mq.broker.writing import EntryWriter
from mq.errors import IllegalRequest, PermissionDenied, UserNotFound, VersionMismatch
from mq.wire.v1.security_pb2 import (
    API_KEY,
    HMAC_SHA1,
    PASSWORD,
    SESSION_KEY,
    AccessChange,
    AccessNamespace,
    AccessPolicy,
    Credential,
    CredentialType,
    Quota,
    User,
)
from mq.wire.v1.state_pb2 import ChangeAccess, Command

CHANGES_MAX = 1_000
USERS_MAX = 10_000
POLICIES_MAX, POLICIES_OF_SUBJECT_MAX = 20_000, 100
NAMESPACES_MAX = 10_000
ROLES_OF_USER_MAX, NAMESPACES_OF_USER_MAX = 32, 100
# Of one user. Two keys: the new one is in use before the old one is revoked.
CREDENTIALS_MAX = {API_KEY: 2, PASSWORD: 1, SESSION_KEY: 20, HMAC_SHA1: 2}
_RESERVED = frozenset((BOOTSTRAP_USER, CLUSTER_USER))

# A user may be called as a certificate is: by a DNS name or a URI.
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/+-]{0,254}")
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_KEY_ID = re.compile(r"[a-z2-7]{12}")
_ACCESS_KEY = re.compile(r"(?!password-)[A-Za-z0-9][A-Za-z0-9._@-]{2,127}")
_DIGEST_BYTES = 32
_TIME_MS_MAX = 1 << 53


def password_id(user: str) -> str:
    return f"password-{user}"


class AccessVersion(NamedTuple):
    """Of the state after a change."""

    version: int
    digest: bytes


class ChangeRequest(NamedTuple):
    changes: Sequence[AccessChange]
    by: Caller
    # Only credentials of this user may be changed; None: everything.
    own_user: str | None = None
    # Of the state that the caller has decided on; 0: any.
    expected_version: int = 0
    # The broker's own, which makes sessions and the one-time token; and what it is recorded as.
    internal: str = ""


class PlannedChange(NamedTuple):
    """The changes of an entry and their records; none, if all of it is so already."""

    changes: list[AccessChange]
    records: list[Record]


class AccessChanges:
    def __init__(
        self,
        writer: EntryWriter,
        machine: Machine,
        leadership: Leadership,
        audit: AuditTrail,
        now_ms: Callable[[], int],
        box: SecretBox | None = None,
    ) -> None:
        """`box` encrypts the secrets of RocketMQ's access keys; None: there can be none."""
        self._access = machine.state.access
        self._topics = machine.state.topics
        self._audit = audit
        self._now_ms = now_ms
        self._box = box
        # Decided on applied state alone, one request after the other.
        self._decider: BatchedDecider[ChangeRequest, None] = BatchedDecider(
            writer, leadership, self._decide, requests_max=1
        )

    async def change(self, request: ChangeRequest) -> AccessVersion:
        """The changes are durable and applied here when this returns. IllegalRequest,
        IllegalPolicy, UserNotFound, PermissionDenied, VersionMismatch: nothing was changed.
        NotLeader, and as `Consensus.propose`.
        """
        await self._decider.submit(request)
        return AccessVersion(self._access.change_count, self._access.digest())

    def _decide(self, requests: list[ChangeRequest]) -> TurnDecision[None]:
        (request,) = requests
        plan = planned(self._access, request, self._now_ms(), self._box, self._has_topics)
        if not plan.changes:
            return TurnDecision([None])
        command = Command(change_access=ChangeAccess(changes=plan.changes))
        return TurnDecision([None], self._audit.entry(command, plan.records, request.by))

    def _has_topics(self, namespace: str) -> bool:
        return any(topic.name.startswith(f"{namespace}%") for topic in self._topics)


def is_own(changes: Iterable[AccessChange], user: str, access: Access) -> bool:
    """Whether they concern credentials of this user alone."""
    return bool(user) and all(_is_own(one, user, access) for one in changes)


def _is_own(change: AccessChange, user: str, access: Access) -> bool:
    kind = change.WhichOneof("kind")
    if kind == "put_credential":
        return change.put_credential.user == user
    if kind == "drop_credential":
        found = access.credential(change.drop_credential)
        return found is None or found.user == user
    return False


def planned(
    access: Access,
    request: ChangeRequest,
    now_ms: int,
    box: SecretBox | None = None,
    has_topics: Callable[[str], bool] = lambda _: False,
) -> PlannedChange:
    """Pure. Raises the errors of `AccessChanges.change`."""
    if len(request.changes) > CHANGES_MAX:
        raise IllegalRequest(f"{len(request.changes)} changes at once: at most {CHANGES_MAX}")
    draft = _Draft(access.fork(), request.internal, now_ms, box, has_topics)
    for change in request.changes:
        own = request.own_user
        if own is not None and not is_own([change], own, draft.access):
            raise PermissionDenied(
                "users may change credentials of their own; the rest is for superusers"
            )
        draft.add(change)
    draft.check_superusers(access)
    # What is so already was written by an earlier attempt, whose answer was lost.
    if draft.changes and request.expected_version not in (0, access.change_count):
        raise VersionMismatch(
            f"users and policies are of version {access.change_count}, and the change is for "
            f"version {request.expected_version}: read them again, and decide anew"
        )
    return PlannedChange(draft.changes, draft.records)


class _Draft:
    """The state with the changes so far."""

    def __init__(
        self,
        access: Access,
        internal: str,
        now_ms: int,
        box: SecretBox | None,
        has_topics: Callable[[str], bool],
    ) -> None:
        self.access = access
        self._internal = internal
        self._now_ms = now_ms
        self._box = box
        self._has_topics = has_topics
        self.changes: list[AccessChange] = []
        self.records: list[Record] = []

    def add(self, change: AccessChange) -> None:
        kind = change.WhichOneof("kind")
        if kind is None:
            raise IllegalRequest("a change that says nothing: is the client newer than the broker?")
        record = getattr(change, kind)
        if kind == "put_credential":
            self._drop_expired(record.user)
        normal = AccessChange()
        normal.CopyFrom(change)
        # Checks it, and brings the copy into its final form.
        if check := getattr(self, f"_check_{kind}", None):
            check(getattr(normal, kind))
        self._make(normal, self._internal or kind)

    def check_superusers(self, before: Access) -> None:
        """Raises IllegalRequest if no superuser could come in afterwards, to undo it."""
        if before.has_superuser() and not self.access.has_superuser():
            raise IllegalRequest(
                f"the last {SUPERUSER} with a key or a password stays: give another user that "
                "role, and a key, first"
            )
        if before.superusers() and not self.access.superusers():
            raise IllegalRequest(f"the last {SUPERUSER} stays: give another user that role first")

    def _make(self, change: AccessChange, what: str) -> None:
        before = _shown(self.access, change)
        was = _record_of(self.access, change)
        self.access.change([change])
        after = _shown(self.access, change)
        if was == _record_of(self.access, change):
            return
        self.changes.append(change)
        self.records.append(Record(what, _subject(change, before, after), before, after))

    # -- users ------------------------------------------------------------------------------------

    def _check_put_user(self, user: User) -> None:
        known = self.access.user(user.name)
        _check_name("user", user.name, _USER, "letters, digits and ._@:/+-, 255 at most")
        if user.name in _RESERVED and not self._internal:
            raise IllegalRequest(f"{user.name} is a user of the broker's own: take another name")
        if known is None and len(self.access.users) >= USERS_MAX:
            raise IllegalRequest(f"there are {USERS_MAX} users: that is all")
        _check_count("roles", user.roles, ROLES_OF_USER_MAX)
        _check_count("namespaces", user.namespaces, NAMESPACES_OF_USER_MAX)
        for role in user.roles:
            _check_name("role", role, _ROLE, "letters, digits and ._-, 127 at most")
        for name in user.namespaces:
            if self.access.namespace(name) is None:
                raise IllegalRequest(f"there is no namespace {name[:200]!r}: create it first")
        if user.namespaces and SUPERUSER in user.roles:
            raise IllegalRequest(
                f"user {user.name} cannot be in namespaces and a superuser, who can leave them: "
                "allow it everything in its namespaces by policies"
            )
        user.roles[:] = dict.fromkeys(user.roles)
        user.namespaces[:] = dict.fromkeys(user.namespaces)
        self._stamp(user, known)

    # -- credentials ------------------------------------------------------------------------------

    def _check_put_credential(self, credential: Credential) -> None:
        self._find_user(credential.user)
        if credential.user == BOOTSTRAP_USER and not self._internal:
            raise IllegalRequest(f"{BOOTSTRAP_USER} has its one-time token and nothing else")
        known = self.access.credential(credential.id)
        if known is not None and (known.user, known.type) != (credential.user, credential.type):
            raise IllegalRequest(f"credential {credential.id[:200]!r} is another one already")
        if credential.type == SESSION_KEY and not self._internal:
            raise IllegalRequest("sessions are made by Login")
        _check_time("expires_at_ms", credential.expires_at_ms)
        if 0 < credential.expires_at_ms <= self._now_ms:
            raise IllegalRequest("expires_at_ms has passed already")
        if credential.is_sealed and credential.type != HMAC_SHA1:
            raise IllegalRequest("secrets of access keys are encrypted, and no other proofs")
        self._check_proof(credential)
        self._stamp(credential, known)
        if known is None:
            self._check_room(credential)

    def _check_proof(self, credential: Credential) -> None:
        if credential.type in (API_KEY, SESSION_KEY):
            _check_name("id of a key", credential.id, _KEY_ID, "12 of a-z and 2-7")
            if len(credential.proof) != _DIGEST_BYTES:
                raise IllegalRequest("the proof of a key is the SHA-256 of its secret: 32 bytes")
        elif credential.type == PASSWORD:
            if credential.id != password_id(credential.user):
                raise IllegalRequest(
                    f"the id of a password is password-<user>, not {credential.id[:200]!r}"
                )
            if not passwords.is_stored(credential.proof):
                raise IllegalRequest("the proof of a password is scrypt$16384$8$5$<salt>$<hash>")
        elif credential.type == HMAC_SHA1:
            _check_name("access key", credential.id, _ACCESS_KEY, "3 to 128 letters, digits, ._@-")
            credential.proof = self._sealed(credential)
            credential.is_sealed = False
        else:
            raise IllegalRequest(f"{credential.type} is no type of a credential")

    def _sealed(self, credential: Credential) -> bytes:
        if self._box is None:
            raise IllegalRequest(
                "access keys of RocketMQ need auth.secret_key_file: their secrets are encrypted"
            )
        secret: bytes | None = credential.proof
        if credential.is_sealed:
            secret = self._box.opened(credential.proof, credential.id)
        if secret is None:
            raise IllegalRequest(
                f"the secret of access key {credential.id} is encrypted with another key: all "
                "brokers of a cluster have the same auth.secret_key_file"
            )
        if not 0 < len(secret) <= SECRET_BYTES_MAX:
            raise IllegalRequest(f"the secret of an access key has 1 to {SECRET_BYTES_MAX} bytes")
        return self._box.sealed(secret, credential.id)

    def _check_room(self, credential: Credential) -> None:
        """Of sessions, the oldest one makes room."""
        same = [
            one
            for one in self.access.credentials_of(credential.user)
            if one.type == credential.type
        ]
        if len(same) < CREDENTIALS_MAX[credential.type]:
            return
        if credential.type != SESSION_KEY:
            name = CredentialType.Name(credential.type).lower()
            raise IllegalRequest(
                f"user {credential.user} has {len(same)} credentials of type {name}: revoke one "
                "first"
            )
        oldest = min(same, key=lambda one: (one.created_at_ms, one.id))
        self._make(AccessChange(drop_credential=oldest.id), "session_ended")

    def _drop_expired(self, user: str) -> None:
        for one in list(self.access.credentials_of(user)):
            if 0 < one.expires_at_ms <= self._now_ms:
                self._make(AccessChange(drop_credential=one.id), "credential_expired")

    # -- policies, quotas, namespaces -------------------------------------------------------------

    def _check_put_policy(self, record: AccessPolicy) -> None:
        self._check_subject(record.subject, "policies", ("user", "role"))
        record.line = str(policies.parse(record.line))
        lines = self.access.lines_of(record.subject)
        if record.line in lines:
            return
        if len(lines) >= POLICIES_OF_SUBJECT_MAX:
            raise IllegalRequest(
                f"{record.subject} has {len(lines)} policies: use prefixes, or a role"
            )
        if self.access.policy_count >= POLICIES_MAX:
            raise IllegalRequest(f"there are {POLICIES_MAX} policies: that is all")

    def _check_drop_policy(self, record: AccessPolicy) -> None:
        record.line = str(policies.parse(record.line))

    def _check_put_quota(self, quota: Quota) -> None:
        if quota.subject != DEFAULT_QUOTA:
            self._check_subject(quota.subject, "quotas", ("user", "namespace"))
        for field, value in quota.ListFields():
            if field.name != "subject":
                _check_time(field.name, value)

    def _check_put_namespace(self, namespace: AccessNamespace) -> None:
        known = self.access.namespace(namespace.name)
        names.check_namespace(namespace.name)
        if known is None and len(self.access.namespaces) >= NAMESPACES_MAX:
            raise IllegalRequest(f"there are {NAMESPACES_MAX} namespaces: that is all")
        self._stamp(namespace, known)

    def _check_drop_namespace(self, name: str) -> None:
        users = (user.name for user in self.access.users.values() if name in user.namespaces)
        if found := next(users, None):
            raise IllegalRequest(
                f"namespace {name[:200]} has users, such as {found}: take it from them first"
            )
        if self.access.namespace(name) is not None and self._has_topics(name):
            raise IllegalRequest(f"namespace {name} has topics: delete them first")

    # -- steps ------------------------------------------------------------------------------------

    def _find_user(self, name: str) -> User:
        found = self.access.user(name)
        if found is None:
            raise UserNotFound(f"there is no user {name[:200]!r}: create it first")
        return found

    def _check_subject(self, subject: str, what: str, kinds: Sequence[str]) -> None:
        kind, _, name = subject.partition(":")
        if kind not in kinds:
            raise IllegalRequest(
                f"{subject[:200]!r} has no {what}: {' and '.join(f'{one}:NAME' for one in kinds)} "
                "have"
            )
        if kind == "user":
            self._find_user(name)
        elif kind == "role":
            _check_name("role", name, _ROLE, "letters, digits and ._-, 127 at most")
        elif self.access.namespace(name) is None:
            raise IllegalRequest(f"there is no namespace {name[:200]!r}: create it first")

    def _stamp(self, record: Any, known: Any) -> None:
        """The admin client says when it was, so that all broker sets have the same."""
        _check_time("created_at_ms", record.created_at_ms)
        if not record.created_at_ms:
            record.created_at_ms = known.created_at_ms if known is not None else self._now_ms


def _check_name(what: str, name: str, form: re.Pattern[str], legal: str) -> None:
    if not form.fullmatch(name[:300]):
        raise IllegalRequest(f"{name[:200]!r} is no {what}: {legal}")


def _check_count(what: str, found: Sequence[str], most: int) -> None:
    if len(found) > most:
        raise IllegalRequest(f"{len(found)} {what} of one user: at most {most}")


def _check_time(what: str, value: int) -> None:
    if not 0 <= value <= _TIME_MS_MAX:
        raise IllegalRequest(f"{what} = {value}: 0 to {_TIME_MS_MAX}")


# -- records of the audit trail -------------------------------------------------------------------


def _record_of(access: Access, change: AccessChange) -> Any:
    """The record that the change is about, as it stands; None: there is none."""
    kind = change.WhichOneof("kind") or ""
    record = getattr(change, kind)
    match kind.partition("_")[2]:
        case "user":
            return access.user(record if isinstance(record, str) else record.name)
        case "credential":
            return access.credential(record if isinstance(record, str) else record.id)
        case "policy":
            return record if record.line in access.lines_of(record.subject) else None
        case "quota":
            return access.quota(record if isinstance(record, str) else record.subject)
        case _:
            return access.namespace(record if isinstance(record, str) else record.name)


def _shown(access: Access, change: AccessChange) -> dict[str, Any] | None:
    """Without what proves a credential. With a user that is dropped goes what it has."""
    record = _record_of(access, change)
    if record is None:
        return None
    shown = dict(_fields(record))
    if change.HasField("drop_user"):
        subject = f"user:{record.name}"
        quota = access.quota(subject)
        shown["credentials"] = [dict(_fields(one)) for one in access.credentials_of(record.name)]
        shown["policies"] = sorted(access.lines_of(subject))
        shown["quota"] = dict(_fields(quota)) if quota is not None else None
    return shown


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    for field, value in record.ListFields():
        if field.name == "proof":
            continue
        if field.name == "type":
            yield field.name, CredentialType.Name(value)
        else:
            yield field.name, list(value) if field.is_repeated else value


def _subject(
    change: AccessChange, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> str:
    """user:NAME, role:NAME, namespace:NAME, or default."""
    shown = after or before or {}
    if "subject" in shown:
        return str(shown["subject"])
    if change.HasField("put_namespace") or change.HasField("drop_namespace"):
        return f"namespace:{shown.get('name', '')}"
    return f"user:{shown.get('user') or shown.get('name', '')}"
