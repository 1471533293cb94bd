"""Users, keys, policies, quotas and namespaces over several broker sets, whose states are the
replicated ones: every change gets to all of them with the same bytes, and a set that differs is
shown and brought in line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from mq.access import keys, policies
from mq.broker.state.access import Access
from mq.client.aio import Admin
from mq.errors import (
    IllegalPolicy,
    IllegalRequest,
    MqError,
    Unauthenticated,
    Unreachable,
    UserNotFound,
    VersionMismatch,
)
from mq.wire.v1 import security_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, RouteResponse

T = TypeVar("T")

FIRST, SECOND = "correct horse", "battery staple"


class Cluster(Admin):
    """`troubles` are raised by set and method, so often."""

    def __init__(self, *sets: str) -> None:
        super().__init__("127.0.0.1:1", timeout_s=1)
        self.sets = {name: Access() for name in sets}
        self.troubles: dict[tuple[str, str], list[MqError]] = {}
        self.requests: list[Any] = []
        self.asked_first = sets[0]
        # The key that a login has given.
        self.presented = ""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def breaks(self, name: str, method: str, error: MqError, times: int = 1) -> None:
        self.troubles[name, method] = [error] * times

    def digests(self) -> set[bytes]:
        return {one.digest() for one in self.sets.values()}

    async def _directory(self, topics: Any = ()) -> RouteResponse:  # noqa: ARG002
        return RouteResponse(broker_sets=[BrokerSet(name=name) for name in sorted(self.sets)])

    async def _ask(self, broker_set: str, request: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002
        method = type(request).__name__.removesuffix("Request")
        self.requests.append(request)
        if troubles := self.troubles.get((broker_set, method)):
            raise troubles.pop()
        return getattr(self, f"_{method}")(self.sets[broker_set], request)

    async def _first_login(self, request: Any) -> Any:
        return await self._ask(self.asked_first, request)

    def _presenting(self, key: keys.ApiKey) -> Any:
        self.presented = key.id
        return contextlib.nullcontext(self)

    def _DescribeAccess(self, there: Access, request: Any) -> pb.DescribeAccessResponse:  # noqa: N802
        state = pb.AccessState()
        state.CopyFrom(there.encode())
        for one in state.credentials:
            if request.with_proofs:
                one.is_sealed = one.type == pb.HMAC_SHA1
            else:
                one.ClearField("proof")
        return pb.DescribeAccessResponse(state=state, digest=there.digest())

    def _ChangeAccess(self, there: Access, request: Any) -> pb.ChangeAccessResponse:  # noqa: N802
        if request.expected_version not in (0, there.change_count):
            raise VersionMismatch("changed since")
        users = {one.name for one in there.encode().users}
        for one in request.changes:
            users.add(one.put_user.name)
            if one.put_credential.user and one.put_credential.user not in users:
                raise UserNotFound(f"there is no user {one.put_credential.user}")
        there.change(request.changes)
        return pb.ChangeAccessResponse(version=there.change_count, digest=there.digest())

    def _WhoAmI(self, there: Access, _: Any) -> pb.WhoAmIResponse:  # noqa: N802
        if self.presented and there.credential(self.presented) is None:
            raise Unauthenticated(f"key {self.presented} is not known")
        return pb.WhoAmIResponse(user="root", credential=self.presented or "rootrootroot")

    def _Login(self, there: Access, request: Any) -> pb.LoginResponse:  # noqa: N802
        if there.user(request.user) is None:
            raise Unauthenticated("wrong user or password")
        session = pb.Credential(id=request.key_id, user=request.user, type=pb.SESSION_KEY)
        there.change([pb.AccessChange(put_credential=session)])
        return pb.LoginResponse(expires_at_ms=1_000 + len(there.encode().users))

    def _CheckAccess(self, there: Access, request: Any) -> pb.CheckAccessResponse:  # noqa: N802
        user = there.user(request.user)
        if user is None:
            raise UserNotFound(f"there is no user {request.user}")
        resource = policies.Resource(policies.Kind(request.kind), request.name)
        action = policies.Action(request.action)
        ruling = policies.decide(there.policies_of(user), action, resource, request.address)
        return pb.CheckAccessResponse(is_allowed=ruling.is_allowed)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b")


# Every change.


def test_all_sets_get_the_same_records(cluster: Cluster) -> None:
    run = cluster.run
    run(cluster.create_namespace("shop"))
    run(cluster.create_user("alice", roles=["app", "app"], namespaces=["shop"], password=FIRST))
    run(cluster.create_key("alice", expires_at_ms=7))
    run(cluster.add_policy("user:alice", "allow  publish topic orders-*"))
    run(cluster.add_policy("role:app", "allow consume group billing"))
    run(cluster.set_quota(pb.Quota(subject="user:alice", streams=3)))
    run(cluster.alter_user("alice", roles=["app", "web"], is_disabled=True))
    assert len(cluster.digests()) == 1
    state = cluster.sets["a"].encode()
    (alice,) = state.users
    assert (list(alice.roles), list(alice.namespaces)) == (["app", "web"], ["shop"])
    assert alice.is_disabled
    assert {(one.subject, one.line) for one in state.policies} == {
        ("user:alice", "allow publish topic orders-*"),
        ("role:app", "allow consume group billing"),
    }
    assert run(cluster.describe_access()).differences == {}
    run(cluster.remove_policy("role:app", "allow consume group billing"))
    run(cluster.remove_quota("user:alice"))
    run(cluster.delete_user("alice"))
    run(cluster.delete_namespace("shop"))
    assert all(not any(one.encode().ListFields()[:-1]) for one in cluster.sets.values())


def test_neither_a_password_nor_the_secret_of_a_key_is_sent(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice", password=FIRST))
    made = cluster.run(cluster.create_key("alice"))
    cluster.run(cluster.alter_user("alice", password=SECOND))
    sent = b"".join(one.SerializeToString() for one in cluster.requests)
    for secret in (FIRST.encode(), SECOND.encode(), made.secret.encode()):
        assert secret not in sent
    stored = cluster.sets["b"].credential(made.id)
    assert stored is not None
    assert keys.is_right(made.secret, stored.proof)
    password = cluster.sets["b"].credential("password-alice")
    assert password is not None
    assert password.proof.startswith(b"scrypt$16384$8$5$")
    cluster.run(cluster.alter_user("alice", password=""))
    assert cluster.sets["b"].credential("password-alice") is None


def test_a_set_that_does_not_answer_keeps_a_change_from_beginning(cluster: Cluster) -> None:
    cluster.breaks("b", "DescribeAccess", Unreachable("gone"))
    with pytest.raises(Unreachable, match=r"broker set b: gone; nothing was changed"):
        cluster.run(cluster.create_user("alice"))
    cluster.breaks("b", "WhoAmI", Unreachable("gone"))
    with pytest.raises(Unreachable, match=r"nothing was changed"):
        cluster.run(cluster.create_key("alice"))
    assert not cluster.sets["a"].encode().users


def test_a_creation_that_breaks_off_is_completed_by_the_same_call(cluster: Cluster) -> None:
    cluster.breaks("b", "ChangeAccess", Unreachable("gone"))
    with pytest.raises(Unreachable, match="user alice is created in a by now, and the same call"):
        cluster.run(cluster.create_user("alice", roles=["app"]))
    with pytest.raises(IllegalRequest, match="a user alice already"):
        cluster.run(cluster.create_user("alice", roles=["other"]))
    cluster.run(cluster.create_user("alice", roles=["app"]))
    assert len(cluster.digests()) == 1
    with pytest.raises(IllegalRequest, match="a user alice already"):
        cluster.run(cluster.create_user("alice", roles=["app"]))


def test_a_key_that_not_all_sets_have_taken_is_in_none(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice"))
    cluster.breaks("b", "ChangeAccess", Unreachable("gone"))
    with pytest.raises(Unreachable, match="gone"):
        cluster.run(cluster.create_key("alice"))
    assert not any(one.encode().credentials for one in cluster.sets.values())


# Slips.


def test_a_user_that_does_not_exist_is_told_with_those_that_may_be_meant(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice"))
    for work in (
        cluster.alter_user("alcie"),
        cluster.delete_user("alcie"),
        cluster.add_policy("user:alcie", "allow publish topic x"),
        cluster.set_quota(pb.Quota(subject="user:alcie")),
    ):
        with pytest.raises(UserNotFound, match=r"no user alcie: .* did you mean alice\?"):
            cluster.run(work)
    for asked in (
        cluster.create_key("alcie"),
        cluster.check_access("alcie", "publish", policies.topic_resource("x")),
    ):
        with pytest.raises(UserNotFound, match=r"did you mean alice\?"):
            cluster.run(asked)


def test_what_is_not_there_cannot_be_removed(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice", password=FIRST))
    for work, text in (
        (cluster.revoke_key("aaaaaaaaaaaa"), "no key 'aaaaaaaaaaaa'"),
        (cluster.revoke_key("password-alice"), "no key"),
        (cluster.remove_policy("user:alice", "allow publish topic x"), "has no line"),
        (cluster.remove_quota("default"), "has no quota"),
        (cluster.delete_namespace("shop"), "no namespace shop"),
        (cluster.alter_user("alice", namespaces=["shop"]), "mq namespace create shop"),
        (cluster.set_quota(pb.Quota(subject="namespace:shop")), "no namespace shop"),
        (cluster.add_policy("alice", "allow publish topic x"), "user:NAME"),
    ):
        with pytest.raises(IllegalRequest, match=text):
            cluster.run(work)
    with pytest.raises(IllegalPolicy, match="no action"):
        cluster.run(cluster.add_policy("user:alice", "allow read topic x"))


def test_a_namespace_with_users_stays(cluster: Cluster) -> None:
    cluster.run(cluster.create_namespace("shop"))
    cluster.run(cluster.create_user("alice", namespaces=["shop"]))
    with pytest.raises(IllegalRequest, match="that of alice"):
        cluster.run(cluster.delete_namespace("shop"))


# Sets that differ.


def test_a_set_that_was_away_is_shown_and_brought_in_line(cluster: Cluster) -> None:
    run = cluster.run
    run(cluster.create_user("both"))
    run(cluster.create_user("stale"))
    at_a = [
        pb.AccessChange(put_namespace=pb.AccessNamespace(name="shop")),
        pb.AccessChange(put_user=pb.User(name="alice", namespaces=["shop"])),
        pb.AccessChange(put_user=pb.User(name="both", roles=["app"])),
        pb.AccessChange(
            put_policy=pb.AccessPolicy(subject="user:alice", line="allow publish topic x")
        ),
        pb.AccessChange(put_quota=pb.Quota(subject="user:alice", streams=1)),
        pb.AccessChange(drop_user="stale"),
    ]
    assert run(cluster.change_access(at_a, broker_set="a")) == {"a": 3}
    view = run(cluster.describe_access())
    assert (view.broker_set, list(view.differences)) == ("a", ["b"])
    assert [one.WhichOneof("kind") for one in view.differences["b"]] == [
        "drop_user",
        "put_namespace",
        "put_user",
        "put_user",
        "put_policy",
        "put_quota",
    ]
    assert run(cluster.sync_access("a")) == {}
    assert len(cluster.digests()) == 1


def test_the_set_to_follow_may_be_the_one_with_fewer_changes(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice"))
    mistake = pb.AccessChange(put_user=pb.User(name="mallory"))
    cluster.run(cluster.change_access([mistake], broker_set="a"))
    cluster.run(cluster.sync_access("b"))
    assert [one.name for one in cluster.sets["a"].encode().users] == ["alice"]
    assert len(cluster.digests()) == 1


def credential(name: str, type_: pb.CredentialType, **fields: Any) -> pb.AccessChange:
    given = {"user": "alice", "proof": keys.digest(name), **fields}
    return pb.AccessChange(put_credential=pb.Credential(id=name, type=type_, **given))


def test_credentials_are_copied_with_their_proofs(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice", password=FIRST))
    at_a = [credential("keykeykeykey", pb.API_KEY), credential("sessionsessi", pb.SESSION_KEY)]
    cluster.run(cluster.change_access(at_a, broker_set="a"))
    # Another password, which only its proof tells.
    at_b = credential("password-alice", pb.PASSWORD, proof=b"another")
    cluster.run(cluster.change_access([at_b], broker_set="b"))
    assert cluster.run(cluster.sync_access("a")) == {}
    assert len(cluster.digests()) == 1
    copied = cluster.sets["b"].credential("keykeykeykey")
    assert copied is not None
    assert copied.proof == keys.digest("keykeykeykey")
    # Each set has sessions of its own.
    assert cluster.sets["b"].credential("sessionsessi") is None
    # The other way: what one set has too much is dropped.
    cluster.run(
        cluster.change_access([pb.AccessChange(drop_credential="keykeykeykey")], broker_set="b")
    )
    assert cluster.run(cluster.sync_access("b")) == {}
    assert cluster.sets["a"].credential("keykeykeykey") is None


def test_credentials_that_have_expired_are_dropped_in_all_sets(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice"))
    old, new = credential("oldoldoldold", pb.API_KEY, expires_at_ms=1), credential("k", pb.API_KEY)
    cluster.run(cluster.change_access([old, new], broker_set="a"))
    cluster.run(cluster.sync_access("a"))
    assert len(cluster.digests()) == 1
    assert all(
        [one.id for one in each.credentials_of("alice")] == ["k"] for each in cluster.sets.values()
    )


def test_without_their_proofs_credentials_that_a_set_lacks_are_told(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice"))
    cluster.run(cluster.change_access([credential("keykeykeykey", pb.API_KEY)], broker_set="a"))
    del cluster.requests[:]
    left = cluster.run(cluster.sync_access("a", has_credentials=False))
    assert [one.put_credential.id for one in left["b"]] == ["keykeykeykey"]
    assert cluster.sets["b"].credential("keykeykeykey") is None
    assert not any(getattr(one, "with_proofs", False) for one in cluster.requests)


def test_a_change_of_a_record_that_differs_makes_it_the_same_again(cluster: Cluster) -> None:
    only_b = pb.AccessChange(put_user=pb.User(name="alice", roles=["app"]))
    cluster.run(cluster.change_access([only_b], broker_set="b"))
    cluster.run(cluster.change_access([pb.AccessChange(drop_user="nobody")], broker_set="a"))
    cluster.run(cluster.alter_user("alice", is_disabled=True))
    assert len(cluster.digests()) == 1


def test_a_set_that_is_missing_is_named(cluster: Cluster) -> None:
    cluster.breaks("a", "DescribeAccess", Unreachable("gone"))
    assert cluster.run(cluster.describe_access()).missing_sets == ("a",)
    cluster.breaks("a", "DescribeAccess", Unreachable("gone"))
    with pytest.raises(Unreachable, match="gone"):
        cluster.run(cluster.describe_access("a"))
    with pytest.raises(IllegalRequest, match="no broker set 'c'"):
        cluster.run(cluster.describe_access("c"))


# Two administrators at once.


class Faster(Cluster):
    """Another administrator is faster than this one, so often: `other` is done right before the
    first change.
    """

    times = 1

    async def other(self) -> None:
        raise NotImplementedError

    async def _ask(self, broker_set: str, request: Any, timeout_s: float | None = None) -> Any:
        if isinstance(request, pb.ChangeAccessRequest) and self.times:
            self.times, times = 0, self.times
            await self.other()
            self.times = times - 1
        return await super()._ask(broker_set, request, timeout_s)


def test_two_administrators_at_once_lose_nothing() -> None:
    class Granting(Faster):
        async def other(self) -> None:
            await self.grant_roles("alice", ["web"])

    cluster = Granting("a", "b")
    cluster.times = 0
    cluster.run(cluster.create_user("alice", roles=["app"]))
    cluster.times = 3
    assert list(cluster.run(cluster.grant_roles("alice", ["ops"])).roles) == ["app", "ops", "web"]
    cluster.times = 1
    cluster.run(cluster.alter_user("alice", is_disabled=True))
    (alice,) = cluster.sets["b"].encode().users
    assert (alice.is_disabled, list(alice.roles)) == (True, ["app", "ops", "web"])
    assert len(cluster.digests()) == 1


def test_a_quota_keeps_the_limit_that_another_administrator_has_set_meanwhile() -> None:
    class Limiting(Faster):
        async def other(self) -> None:
            await self.alter_quota("default", {"topics": 5})

    cluster = Limiting("a", "b")
    cluster.times = 0
    cluster.run(cluster.create_user("root"))
    cluster.times = 1
    made = cluster.run(cluster.alter_quota("default", {"streams": 3}))
    assert made == pb.Quota(subject="default", streams=3, topics=5)
    assert len(cluster.digests()) == 1


def test_what_is_written_is_made_of_the_first_set_and_reaches_those_that_others_wrote_to() -> None:
    """The other one has written to the first set and not yet to the second, which counts more
    changes.
    """
    cluster = Cluster("a", "b")
    cluster.run(cluster.create_user("alice"))
    for _ in range(3):
        cluster.run(cluster.change_access([pb.AccessChange(drop_user="x")], broker_set="b"))
    web = pb.AccessChange(put_user=pb.User(name="alice", roles=["web"]))
    cluster.run(cluster.change_access([web], broker_set="a"))
    assert list(cluster.run(cluster.grant_roles("alice", ["app"])).roles) == ["app", "web"]
    assert len(cluster.digests()) == 1


def test_one_who_is_always_too_late_is_told_so_in_the_end() -> None:
    class Busy(Faster):
        async def other(self) -> None:
            await self.change_access([pb.AccessChange(drop_user="nobody")])

    cluster = Busy("a", "b")
    cluster.times = 0
    cluster.run(cluster.create_user("alice"))
    cluster.times = 1_000
    with pytest.raises(VersionMismatch):
        cluster.run(cluster.grant_roles("alice", ["app"]))
    assert 2 < 1_000 - cluster.times < 10


def test_a_change_of_what_is_not_there_is_told(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice", roles=["app"]))
    with pytest.raises(IllegalRequest, match="has no role web, but app"):
        cluster.run(cluster.revoke_roles("alice", ["app", "web"]))
    assert not cluster.run(cluster.revoke_roles("alice", ["app"])).roles
    with pytest.raises(IllegalRequest, match="nor any other"):
        cluster.run(cluster.revoke_roles("alice", ["app"]))
    with pytest.raises(UserNotFound):
        cluster.run(cluster.grant_roles("nobody", ["app"]))
    with pytest.raises(IllegalRequest, match="has no quota"):
        cluster.run(cluster.alter_quota("default", {"streams": 0}))
    cluster.run(cluster.alter_quota("user:alice", {"streams": 2}))
    cluster.run(cluster.alter_quota("user:alice", {"streams": 0}))
    assert not cluster.sets["a"].quotas
    assert len(cluster.digests()) == 1


# The caller, and decisions.


def test_each_set_decides_by_what_it_has(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("alice"))
    line = pb.AccessPolicy(subject="user:alice", line="allow publish topic x")
    cluster.run(cluster.change_access([pb.AccessChange(put_policy=line)], broker_set="a"))
    check = cluster.check_access("alice", "publish", policies.topic_resource("x"))
    assert {name: one.is_allowed for name, one in cluster.run(check).items()} == {
        "a": True,
        "b": False,
    }


def test_a_login_gives_one_key_for_all_sets_and_names_those_that_refuse(cluster: Cluster) -> None:
    put = [pb.AccessChange(put_user=pb.User(name=name)) for name in ("alice", "bob")]
    cluster.run(cluster.change_access(put[:1]))
    session = cluster.run(cluster.login("alice", "pw"))
    assert (session.expires_at_ms, session.missing_sets, session.refusing_sets) == (1_001, (), ())
    sent = [one for one in cluster.requests if isinstance(one, pb.LoginRequest)]
    # Once to each set: a session that is there is not begun anew.
    assert [one.key_id for one in sent] == [session.key.id] * 2
    assert all(one.key_digest == keys.digest(session.key.secret) for one in sent)
    cluster.run(cluster.change_access(put[1:], broker_set="b"))
    cluster.asked_first = "b"
    assert cluster.run(cluster.login("bob", "pw")).refusing_sets == ("a",)
    cluster.breaks("a", "WhoAmI", Unreachable("gone"))
    cluster.breaks("a", "Login", Unreachable("gone"))
    assert cluster.run(cluster.login("bob", "pw")).missing_sets == ("a",)
    with pytest.raises(Unauthenticated):
        cluster.run(cluster.login("nobody", "pw"))


def test_a_logout_revokes_the_key_that_is_presented(cluster: Cluster) -> None:
    cluster.run(cluster.create_user("root"))
    put = pb.Credential(id="rootrootroot", user="root", type=pb.SESSION_KEY)
    cluster.run(cluster.change_access([pb.AccessChange(put_credential=put)]))
    assert cluster.run(cluster.logout()) == "rootrootroot"
    assert not any(one.encode().credentials for one in cluster.sets.values())
