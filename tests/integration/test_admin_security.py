"""Administration of access against a real broker that wants to know its callers, by both faces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from mq.access.policies import topic_resource
from mq.client import Admin, aio
from mq.errors import (
    IllegalRequest,
    PermissionDenied,
    Unauthenticated,
    UserNotFound,
)
from mq.wire.v1 import security_pb2 as pb
from tests.support.secured_broker import SecuredBroker

WORD = "correct horse"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def root(broker: SecuredBroker) -> Iterator[Admin]:
    with Admin(broker.address, api_key=broker.root) as made:
        yield made


def test_a_caller_is_known_by_its_key(broker: SecuredBroker, root: Admin) -> None:
    [known] = root.who_am_i().values()
    assert (known.user, list(known.roles), known.auth_mode) == ("root", ["superuser"], "required")
    assert known.address == "127.0.0.1"
    with Admin(broker.address) as nobody, pytest.raises(Unauthenticated):
        nobody.who_am_i()


def test_a_password_is_exchanged_for_a_key_that_a_logout_revokes(
    broker: SecuredBroker, root: Admin
) -> None:
    root.create_user("alice", password=WORD)
    with Admin(broker.address) as nobody:
        with pytest.raises(Unauthenticated):
            nobody.login("alice", "wrong horse")
        with pytest.raises(Unauthenticated):
            nobody.login("malice", WORD)
        session = nobody.login("alice", WORD)
    left_ms = session.expires_at_ms - time.time() * 1000
    assert 7 * HOUR_MS < left_ms <= 8 * HOUR_MS
    with Admin(broker.address, api_key=session.key.text) as alice:
        [known] = alice.who_am_i().values()
        assert (known.user, known.credential) == ("alice", session.key.id)
        assert known.expires_at_ms == session.expires_at_ms
        assert alice.logout() == session.key.id
        with pytest.raises(Unauthenticated):
            alice.who_am_i()
    root.delete_user("alice")


def test_users_see_and_change_what_is_their_own(broker: SecuredBroker, root: Admin) -> None:
    root.create_user("bob", roles=["app"])
    root.add_policy("role:app", "allow publish topic orders-*")
    root.add_policy("role:other", "deny publish topic *")
    key = root.create_key("bob")
    with Admin(broker.address, api_key=key.text) as bob:
        view = bob.describe_access()
        assert [one.name for one in view.state.users] == ["bob"]
        assert [one.subject for one in view.state.policies] == ["role:app"]
        second = bob.create_key("bob")
        with pytest.raises(IllegalRequest, match="revoke one first"):
            bob.create_key("bob")
        bob.revoke_key(key.id)
        with pytest.raises(Unauthenticated):
            bob.who_am_i()
    with Admin(broker.address, api_key=second.text) as bob:
        for refused in (
            lambda: bob.create_key("root"),
            lambda: bob.create_user("eve"),
            lambda: bob.alter_user("bob", roles=["superuser"]),
            lambda: bob.delete_user("bob"),
            lambda: bob.add_policy("user:bob", "allow * topic *"),
            lambda: bob.check_access("root", "publish", topic_resource("x")),
        ):
            with pytest.raises(PermissionDenied):
                refused()
        with pytest.raises(IllegalRequest, match="no key"):
            bob.revoke_key(root.who_am_i().popitem()[1].credential)
        mine = bob.check_access("bob", "publish", topic_resource("orders-1"))
        assert [one.policy.subject for one in mine.values()] == ["role:app"]
    root.delete_user("bob")


def test_a_disabled_user_is_refused_until_it_is_enabled(broker: SecuredBroker, root: Admin) -> None:
    root.create_user("carol")
    key = root.create_key("carol")
    with Admin(broker.address, api_key=key.text) as carol:
        carol.who_am_i()
        root.alter_user("carol", is_disabled=True)
        with pytest.raises(Unauthenticated):
            carol.who_am_i()
        root.alter_user("carol", is_disabled=False)
        assert carol.who_am_i().popitem()[1].user == "carol"
    root.delete_user("carol")


def test_the_last_superuser_stays(root: Admin) -> None:
    for change in (
        lambda: root.delete_user("root"),
        lambda: root.alter_user("root", roles=[]),
        lambda: root.alter_user("root", is_disabled=True),
        lambda: root.revoke_key(root.who_am_i().popitem()[1].credential),
    ):
        with pytest.raises(IllegalRequest, match="the last superuser"):
            change()


def test_the_same_with_asyncio(broker: SecuredBroker) -> None:
    async def scenario() -> None:
        async with aio.Admin(broker.address, api_key=broker.root) as admin:
            await admin.create_namespace("shop")
            await admin.create_user("dave", namespaces=["shop"], password=WORD)
            await admin.set_quota(pb.Quota(subject="namespace:shop", topics=5))
            session = await admin.login("dave", WORD)
            async with aio.Admin(broker.address, api_key=session.key.text) as dave:
                [known] = (await dave.who_am_i()).values()
                assert list(known.namespaces) == ["shop"]
            await admin.delete_user("dave")
            await admin.delete_namespace("shop")
            with pytest.raises(UserNotFound):
                await admin.create_key("dave")

    asyncio.run(scenario())
