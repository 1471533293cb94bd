"""Administration of users, keys, policies, quotas and namespaces.

Broker sets are separate logs, and each decides by what it has: a change is written to all of them,
with the same times, ids and hashes, which are made here. Neither the secret of a new key nor a new
password crosses the wire. `describe_access` shows a set that differs, as an `AccessView`, and
`sync_access` brings it in line.

What is made of what was read, such as one more role of a user, is written for the version that was
read, and made anew if another administrator was faster. It is made of what the first set has, by
name: all administrators write to the sets in this order, so that no change of one of them is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from mq.access import keys, passwords, policies
from mq.access.keys import ApiKey
from mq.access.policies import Resource
from mq.access.views import AccessView, difference, is_copyable, unexpired, view_of
from mq.client.admin.calls import AdminCalls
from mq.client.cluster.retry import back_off_s
from mq.errors import IllegalRequest, MqError, Unauthenticated, UserNotFound, VersionMismatch
from mq.wire.v1 import security_pb2 as wire
from mq.wire.v1.security_pb2 import (
    AccessChange,
    AccessNamespace,
    AccessPolicy,
    ChangeAccessRequest,
    Credential,
    Quota,
    User,
)

# The number that a broker takes at once.
_CHANGES_MAX = 1_000
_SECRET_BYTES = 32
# Of a change that others come before.
_ATTEMPTS = 6

T = TypeVar("T")


class SetAnswers(dict[str, T]):
    """Answers by the name of the broker set, without those of `missing_sets`, which did not
    answer.
    """

    missing_sets: tuple[str, ...]

    def __init__(self, found: Iterable[tuple[str, T]] = (), missing_sets: Iterable[str] = ()):
        super().__init__(found)
        self.missing_sets = tuple(missing_sets)


class AccessKey(NamedTuple):
    """Of a client of RocketMQ."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"AccessKey({self.id!r})"


class Session(NamedTuple):
    """The result of a login."""

    key: ApiKey
    expires_at_ms: int
    # Broker sets that do not know the key: they did not answer, or have another password.
    missing_sets: tuple[str, ...] = ()
    refusing_sets: tuple[str, ...] = ()


class SecurityAdmin(AdminCalls):
    async def describe_access(self, broker_set: str = "") -> AccessView:
        """Users, credentials, policies, quotas and namespaces as this set has them, or the one with
        the most changes; and in what the other sets differ from it.
        """
        if broker_set:
            await self._known_set(broker_set)
        replies = await self._ask_all(wire.DescribeAccessRequest())
        found = replies.some()
        if broker_set in replies.missing:
            raise replies.missing[broker_set]
        return view_of(found, broker_set, replies.missing)

    async def change_access(
        self,
        changes: Iterable[AccessChange],
        *,
        broker_set: str = "",
        expected_versions: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Writes the changes to all broker sets, or to one: all of them or none, in each set. The
        version of each set after it. Nothing is changed when a set does not answer.

        `expected_versions`: by set, as `describe_access` has them in its states. VersionMismatch
        if one has another version by now.
        """
        sets = [broker_set] if broker_set else await self._answering_sets()
        if broker_set:
            await self._known_set(broker_set)
        return await self._write(sets, changes, "the change is made", expected_versions)

    async def sync_access(
        self, source: str, *, has_credentials: bool = True
    ) -> dict[str, list[AccessChange]]:
        """Makes all broker sets as `source` is; keys and passwords that have expired go there, too.
        Brokers give away what proves credentials to superusers over TLS, or on their own machine:
        PermissionDenied otherwise.

        Without `has_credentials`, what proves them stays where it is. Returns, by set, those that
        it lacks: new ones are to be made.
        """
        await self._known_set(source)
        return await self._undisturbed(partial(self._sync, source, has_credentials=has_credentials))

    async def _sync(self, source: str, *, has_credentials: bool) -> dict[str, list[AccessChange]]:
        request = wire.DescribeAccessRequest(with_proofs=has_credentials)
        view = view_of((await self._ask_all(request)).all(), source)
        wanted = unexpired(view.state, _now_ms()) if has_credentials else view.state
        left: dict[str, list[AccessChange]] = {}
        for name, there in view.states.items():
            changes = difference(wanted, there)
            copied = [one for one in changes if is_copyable(one)]
            version = there.version
            for start in range(0, len(copied), _CHANGES_MAX):
                part = copied[start : start + _CHANGES_MAX]
                change = ChangeAccessRequest(changes=part, expected_version=version)
                version = (await self._ask(name, change)).version
            if lacking := [one for one in changes if not is_copyable(one)]:
                left[name] = lacking
        return left

    # Users

    async def create_user(
        self,
        name: str,
        *,
        roles: Sequence[str] = (),
        namespaces: Sequence[str] = (),
        password: str | None = None,
    ) -> User:
        """Creates a user, who may do nothing until a policy allows it. `superuser` is the role that
        may do everything. IllegalRequest when there is such a user. A call that failed after some
        sets had it is completed by the same call again.
        """
        view = await self._view()
        user = User(
            name=name,
            roles=sorted(set(roles)),
            namespaces=dict.fromkeys(namespaces),
            created_at_ms=_now_ms(),
        )
        _check_namespaces(view, user)
        there = view.users(name)
        if there:
            user.created_at_ms = there[0].created_at_ms
            if len(there) == len(view.states) or there[0] != user:
                raise IllegalRequest(
                    f"there is a user {name} already: `mq user describe {name}` shows it, "
                    "`mq user alter` changes it"
                )
        changes = [AccessChange(put_user=user)]
        if password is not None:
            changes.append(AccessChange(put_credential=await _password_of(name, password)))
        await self._write(view.states, changes, f"user {name} is created")
        return user

    async def alter_user(
        self,
        name: str,
        *,
        roles: Sequence[str] | None = None,
        namespaces: Sequence[str] | None = None,
        is_disabled: bool | None = None,
        password: str | None = None,
    ) -> User:
        """Changes a user in all broker sets; None leaves a value alone. The keys of a disabled user
        are refused; an empty password takes the user's password away. UserNotFound.
        """
        more: list[AccessChange] = []
        if password:
            more.append(AccessChange(put_credential=await _password_of(name, password)))
        elif password is not None:
            more.append(AccessChange(drop_credential=_password_id(name)))

        def alter(user: User) -> None:
            if roles is not None:
                user.roles[:] = sorted(set(roles))
            if namespaces is not None:
                user.namespaces[:] = dict.fromkeys(namespaces)
            if is_disabled is not None:
                user.is_disabled = is_disabled

        return await self._alter_user(name, alter, more)

    async def grant_roles(self, user: str, roles: Sequence[str]) -> User:
        """Adds roles to those that a user has, in all broker sets. UserNotFound."""

        def alter(found: User) -> None:
            found.roles[:] = sorted({*found.roles, *roles})

        return await self._alter_user(user, alter)

    async def revoke_roles(self, user: str, roles: Sequence[str]) -> User:
        """Takes roles from a user, in all broker sets. UserNotFound; IllegalRequest when it has not
        all of them.
        """

        def alter(found: User) -> None:
            for one in roles:
                if one not in found.roles:
                    has = f"but {', '.join(found.roles)}" if found.roles else "nor any other"
                    raise IllegalRequest(f"user {user} has no role {one}, {has}")
            found.roles[:] = [one for one in found.roles if one not in roles]

        return await self._alter_user(user, alter)

    async def _alter_user(
        self, name: str, alter: Callable[[User], None], more: Sequence[AccessChange] = ()
    ) -> User:
        def change(view: AccessView) -> tuple[list[AccessChange], User]:
            user = User()
            user.CopyFrom(view.user(name))
            alter(user)
            _check_namespaces(view, user)
            return [AccessChange(put_user=user), *more], user

        return await self._change_read(change, f"user {name} is changed")

    async def delete_user(self, name: str) -> None:
        """Deletes a user with its credentials, policies and quota, in all broker sets. UserNotFound
        when none has it.
        """
        view = await self._view()
        view.user(name)
        await self._write_one(view, f"user {name} is deleted", drop_user=name)

    # Keys

    async def create_key(self, user: str, *, expires_at_ms: int = 0) -> ApiKey:
        """Makes a key of a user, the same for all broker sets; its `text` is what clients present,
        and is known to nobody else. 0: it does not expire. Users may make keys of their own.
        UserNotFound.
        """
        made = keys.new()
        credential = Credential(
            id=made.id,
            user=user,
            type=wire.API_KEY,
            proof=keys.digest(made.secret),
            created_at_ms=_now_ms(),
            expires_at_ms=expires_at_ms,
        )
        await self._put_new(credential)
        return made

    async def create_access_key(self, user: str) -> AccessKey:
        """Makes an access key of RocketMQ's clients, which sign with its secret: brokers have to
        know that, so that it goes to them, over TLS, and is stored encrypted. UserNotFound,
        IllegalRequest when they have no `auth.secret_key_file`.
        """
        made = AccessKey(keys.new_id(), secrets.token_urlsafe(_SECRET_BYTES))
        credential = Credential(
            id=made.id,
            user=user,
            type=wire.HMAC_SHA1,
            proof=made.secret.encode(),
            created_at_ms=_now_ms(),
        )
        await self._put_new(credential)
        return made

    async def _put_new(self, credential: Credential) -> None:
        """In all sets, or in none: the caller gets to see the secret only when all have it."""
        request = ChangeAccessRequest(changes=[AccessChange(put_credential=credential)])
        done: list[str] = []
        for name in await self._answering_sets():
            try:
                await self._ask(name, request)
            except MqError as error:
                # Also where it failed: the answer alone may have been lost.
                with contextlib.suppress(MqError):
                    await self._drop_credential(credential.id, [*done, name])
                raise await self._with_similar(error, credential.user) from None
            done.append(name)

    async def revoke_key(self, key_id: str) -> None:
        """Makes a key useless in all broker sets; what it is used for right now ends within a
        second. Users may revoke their own. IllegalRequest when there is no such key.
        """
        view = await self._view()
        found = view.credentials(key_id)
        if not found or found[0].type == wire.PASSWORD:
            raise IllegalRequest(f"there is no key {key_id[:200]!r}: `mq key list` shows all")
        await self._drop_credential(key_id, view.states)

    async def _drop_credential(self, credential_id: str, sets: Iterable[str]) -> None:
        change = AccessChange(drop_credential=credential_id)
        await self._write(sets, [change], f"{credential_id} is revoked")

    # Policies

    async def add_policy(self, subject: str, line: str) -> AccessPolicy:
        """Adds a line to the policies of `user:NAME` or `role:NAME`; see `mq.access.policies`. A
        line that is there already is not added again. IllegalPolicy, UserNotFound.
        """
        policy = AccessPolicy(subject=subject, line=str(policies.parse(line)))
        view = await self._view()
        _check_policy_subject(view, subject)
        await self._write_one(view, "the policy is added", put_policy=policy)
        return policy

    async def remove_policy(self, subject: str, line: str) -> AccessPolicy:
        """Removes a line of this user or role. IllegalRequest when it has no such line."""
        policy = AccessPolicy(subject=subject, line=str(policies.parse(line)))
        view = await self._view()
        if not view.policies(policy):
            raise IllegalRequest(
                f"{subject} has no line {policy.line!r}: `mq policy list` shows what it has"
            )
        await self._write_one(view, "the policy is removed", drop_policy=policy)
        return policy

    async def check_access(
        self, user: str, action: str, resource: Resource, *, address: str = ""
    ) -> SetAnswers[wire.CheckAccessResponse]:
        """The decision of each broker set, and the line that decides; nothing is done. `address`:
        of the client, for lines with a network. UserNotFound.
        """
        request = wire.CheckAccessRequest(
            user=user, action=action, kind=resource.kind, name=resource.name, address=address
        )
        replies = await self._ask_all(request, absent=UserNotFound)
        try:
            return SetAnswers(replies.some().items(), replies.missing)
        except UserNotFound as error:
            raise await self._with_similar(error, user) from None

    # Quotas and namespaces

    async def set_quota(self, quota: Quota) -> None:
        """Limits `user:NAME`, `namespace:NAME` or `default`, in each broker set by itself; replaces
        what was set before. 0 in a field: not limited. UserNotFound, IllegalRequest.
        """
        view = await self._view()
        _check_quota_subject(view, quota.subject)
        await self._write_one(view, "the quota is set", put_quota=quota)

    async def alter_quota(self, subject: str, limits: Mapping[str, int]) -> Quota:
        """Sets these limits of `user:NAME`, `namespace:NAME` or `default`, by the fields of a
        Quota, and leaves the others as they are; 0 lifts one. The quota after it: without any
        limit, there is none any more. UserNotFound, IllegalRequest.
        """

        def change(view: AccessView) -> tuple[list[AccessChange], Quota]:
            _check_quota_subject(view, subject)
            quota, there = Quota(subject=subject), view.quotas(subject)
            if there:
                quota.CopyFrom(there[0])
            for field, limit in limits.items():
                setattr(quota, field, limit)
            if len(quota.ListFields()) > 1:
                return [AccessChange(put_quota=quota)], quota
            if not there:
                raise _no_quota(subject)
            return [AccessChange(drop_quota=subject)], quota

        return await self._change_read(change, "the quota is set")

    async def remove_quota(self, subject: str) -> None:
        """Removes all limits of `user:NAME`, `namespace:NAME` or `default`. IllegalRequest when it
        has none.
        """
        view = await self._view()
        if not view.quotas(subject):
            raise _no_quota(subject)
        await self._write_one(view, "the quota is removed", drop_quota=subject)

    async def create_namespace(self, name: str) -> AccessNamespace:
        """Creates a namespace, which users are put into by `alter_user`. IllegalRequest when there
        is one already.
        """
        view = await self._view()
        there = view.namespaces(name)
        if len(there) == len(view.states):
            raise IllegalRequest(f"there is a namespace {name} already")
        namespace = there[0] if there else AccessNamespace(name=name, created_at_ms=_now_ms())
        await self._write_one(view, f"namespace {name} is created", put_namespace=namespace)
        return namespace

    async def delete_namespace(self, name: str) -> None:
        """Deletes a namespace and its quota. IllegalRequest when there is none, or when users are
        in it.
        """
        view = await self._view()
        _check_namespace(view, name)
        users = [one.name for one in view.state.users if name in one.namespaces]
        if users:
            shown = ", ".join(users[:5]) + (", ..." if len(users) > 5 else "")
            raise IllegalRequest(
                f"namespace {name} is that of {shown}: give them another one first (`mq user "
                "alter`)"
            )
        await self._write_one(view, f"namespace {name} is deleted", drop_namespace=name)

    # The caller

    async def who_am_i(self) -> SetAnswers[wire.WhoAmIResponse]:
        """By which name each broker set knows this client. Sets that do not know it are left out;
        Unauthenticated when none does.
        """
        replies = await self._ask_all(wire.WhoAmIRequest(), absent=Unauthenticated)
        return SetAnswers(replies.some().items(), replies.missing)

    async def login(self, user: str, password: str) -> Session:
        """A key for some hours, the same for all broker sets, in exchange for the password, which
        goes to each of them as it is: use TLS. Unauthenticated.
        """
        made = keys.new()
        request = wire.LoginRequest(
            user=user, password=password, key_id=made.id, key_digest=keys.digest(made.secret)
        )
        # Brokers tell of the other sets to those that they know: one of them comes first.
        first = await self._first_login(request)
        async with self._presenting(made) as known:
            return await known._complete_login(made, request, first.expires_at_ms)  # noqa: SLF001

    async def _first_login(self, request: wire.LoginRequest) -> wire.LoginResponse:
        """At the set of the first broker that the user named, if that answers."""
        seeds = self._connection.seeds
        call = self._connection.call(request, self._timeout_s, first=seeds)
        answer: wire.LoginResponse = await call
        return answer

    def _presenting(self, key: ApiKey) -> SecurityAdmin:
        """Another client of the same brokers."""
        options = {**self._options.shared, "api_key": key.text, "api_key_file": None}
        return type(self)(**options, timeout_s=self._timeout_s)

    async def _complete_login(
        self, key: ApiKey, request: wire.LoginRequest, expires_at_ms: int
    ) -> Session:
        """In the sets that do not know the key yet."""
        sets = await self._set_names()
        asking = dict.fromkeys(sets, wire.WhoAmIRequest())
        known = await self._ask_all(asking, absent=Unauthenticated)
        lacking = [
            name
            for name in sets
            if name not in known.found or known.found[name].credential != key.id
        ]
        replies = await self._ask_all(dict.fromkeys(lacking, request), absent=Unauthenticated)
        answers: list[wire.LoginResponse] = list(replies.found.values())
        return Session(
            key,
            min([expires_at_ms, *(one.expires_at_ms for one in answers)]),
            tuple(replies.missing),
            tuple(replies.absent),
        )

    async def logout(self) -> str:
        """Revokes the key that this client presents; its id. IllegalRequest when it presents
        none.
        """
        known = await self.who_am_i()
        ids = {one.credential for one in known.values() if one.credential}
        if not ids:
            raise IllegalRequest("this client presents no key that could be revoked")
        [key_id] = ids
        await self._drop_credential(key_id, known)
        return key_id

    # Steps

    async def _view(self) -> AccessView:
        """For writes: all sets must answer."""
        return view_of((await self._ask_all(wire.DescribeAccessRequest())).all())

    async def _with_similar(self, error: MqError, user: str) -> MqError:
        """The error that there is no such user, with the names that may have been meant."""
        if isinstance(error, UserNotFound):
            try:
                (await self.describe_access()).user(user)
            except MqError as other:
                return other if isinstance(other, UserNotFound) else error
        return error

    async def _answering_sets(self) -> list[str]:
        """All sets; raises when one does not answer. Also for callers that may describe nothing."""
        return sorted((await self._ask_all(wire.WhoAmIRequest())).all())

    async def _write(
        self,
        sets: Iterable[str],
        changes: Iterable[AccessChange],
        done: str,
        expected_versions: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        changes, versions, sets = [*changes], expected_versions or {}, [*sets]
        requests = {
            name: ChangeAccessRequest(changes=changes, expected_version=versions.get(name, 0))
            for name in sets
        }
        answers = await self._change_each(sets, requests, done)
        return {name: answer.version for name, answer in answers.items()}

    async def _write_one(self, view: AccessView, done: str, **change: Any) -> None:
        await self._write(view.states, [AccessChange(**change)], done)

    async def _change_read(
        self, change: Callable[[AccessView], tuple[list[AccessChange], T]], done: str
    ) -> T:
        """Writes what is made of what is there: `change` returns the changes, and the result."""

        async def attempt() -> T:
            states = (await self._ask_all(wire.DescribeAccessRequest())).all()
            view = view_of(states, min(states))
            changes, result = change(view)
            versions = {name: one.version for name, one in view.states.items()}
            await self._write(view.states, changes, done, versions)
            return result

        return await self._undisturbed(attempt)

    async def _undisturbed(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Once more if something was changed in between, a few times."""
        for at in range(_ATTEMPTS - 1):
            try:
                return await attempt()
            except VersionMismatch:
                # Another time than the one that was faster, which may have been disturbed, too.
                await asyncio.sleep(random.uniform(0.5, 1.5) * back_off_s(at))  # noqa: S311
        return await attempt()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _password_id(user: str) -> str:
    return f"password-{user}"


async def _password_of(user: str, password: str) -> Credential:
    """Hashing takes a good part of a second, on purpose."""
    passwords.check(password)
    proof = await asyncio.to_thread(passwords.hashed, password)
    return Credential(
        id=_password_id(user), user=user, type=wire.PASSWORD, proof=proof, created_at_ms=_now_ms()
    )


def _check_namespaces(view: AccessView, user: User) -> None:
    for name in user.namespaces:
        _check_namespace(view, name)


def _check_namespace(view: AccessView, name: str) -> None:
    if not view.namespaces(name):
        known = [one.name for one in view.state.namespaces]
        there = f"there are {', '.join(known)}" if known else "there is none yet"
        raise IllegalRequest(
            f"there is no namespace {name}: {there}, and `mq namespace create {name}` makes it"
        )


def _check_quota_subject(view: AccessView, subject: str) -> None:
    kind, _, name = subject.partition(":")
    if kind == "user":
        view.user(name)
    elif kind == "namespace":
        _check_namespace(view, name)


def _no_quota(subject: str) -> IllegalRequest:
    return IllegalRequest(f"{subject} has no quota: `mq quota list` shows those that have")


def _check_policy_subject(view: AccessView, subject: str) -> None:
    kind, _, name = subject.partition(":")
    if kind not in ("user", "role") or not name:
        raise IllegalRequest(f"{subject[:200]!r} has no policies: user:NAME and role:NAME have")
    if kind == "user":
        view.user(name)
