"""Changes of users, credentials, policies, quotas and namespaces: which are made, and how they are
recorded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.access.secrets import SecretBox
from mq.broker.security import changes as module
from mq.broker.security.audit import AuditTrail
from mq.broker.security.changes import (
    NAMESPACES_OF_USER_MAX,
    POLICIES_OF_SUBJECT_MAX,
    ROLES_OF_USER_MAX,
    AccessChanges,
    ChangeRequest,
)
from mq.broker.state.access import Access
from mq.errors import (
    IllegalPolicy,
    IllegalRequest,
    MqError,
    NotLeader,
    PermissionDenied,
    UserNotFound,
)
from mq.names import AUDIT_TOPIC
from mq.wire.v1.security_pb2 import (
    HMAC_SHA1,
    PASSWORD,
    SESSION_KEY,
    AccessChange,
    Credential,
)
from tests.support.consensus import Node, on_loop, soon, turns
from tests.unit.broker.security.access_scene import (
    NOW_MS,
    ROOT,
    By,
    drop,
    drop_policy,
    key,
    make,
    namespace,
    password,
    plan,
    policy,
    quota,
    set_up,
    trail,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = "allow publish topic t"
ACCESS_KEY = Credential(id="rocket", user="a", type=HMAC_SHA1, proof=b"secret of rocket")

ILLEGAL: list[tuple[AccessChange, type[MqError]]] = [
    (AccessChange(), IllegalRequest),
    (user(""), IllegalRequest),
    (user("a b"), IllegalRequest),
    (user("%a"), IllegalRequest),
    (user("a" * 256), IllegalRequest),
    (user("-a"), IllegalRequest),
    (user("bootstrap"), IllegalRequest),
    (user("cluster", "superuser"), IllegalRequest),
    (user("a", "r s"), IllegalRequest),
    (user("a", ""), IllegalRequest),
    (user("a", *(f"r{at}" for at in range(ROLES_OF_USER_MAX + 1))), IllegalRequest),
    (user("a", namespaces=["none"]), IllegalRequest),
    (user("a", "superuser", namespaces=["n"]), IllegalRequest),
    (user("a", namespaces=["n"] * (NAMESPACES_OF_USER_MAX + 1)), IllegalRequest),
    (user("a", created_at_ms=-1), IllegalRequest),
    (key("nobody"), UserNotFound),
    (key("a", "UPPERCASE123"), IllegalRequest),
    (key("a", "short"), IllegalRequest),
    (key("a", proof=b"short"), IllegalRequest),
    (key("a", expires_at_ms=NOW_MS), IllegalRequest),
    (key("a", expires_at_ms=-1), IllegalRequest),
    (key("a", type=0), IllegalRequest),
    (key("a", type=99), IllegalRequest),
    (key("a", type=SESSION_KEY), IllegalRequest),
    # The id of another user's key.
    (key("a", "rootkeyrootk"), IllegalRequest),
    # A password is called after its user, and its text decides nothing about the work of a login.
    (key("a", "password-root", type=PASSWORD, proof=b""), IllegalRequest),
    (key("a", "password-a", type=PASSWORD, proof=b"plain"), IllegalRequest),
    (
        key("a", "password-a", type=PASSWORD, proof=b"scrypt$1073741824$8$5$AAAA$AAAA"),
        IllegalRequest,
    ),
    (AccessChange(put_credential=ACCESS_KEY), IllegalRequest),
    (policy("user:nobody", LINE), UserNotFound),
    (policy("a", LINE), IllegalRequest),
    (policy("namespace:n", LINE), IllegalRequest),
    (policy("role:", LINE), IllegalRequest),
    (policy("user:a", "allow everything"), IllegalPolicy),
    (drop_policy("user:a", "allow everything"), IllegalPolicy),
    (quota("user:nobody"), UserNotFound),
    (quota("namespace:none"), IllegalRequest),
    (quota("role:r"), IllegalRequest),
    (quota("user:a", streams=1 << 60), IllegalRequest),
    (namespace("a%b"), IllegalRequest),
    (namespace(""), IllegalRequest),
    (namespace("x" * 64), IllegalRequest),
    (namespace("a|b"), IllegalRequest),
    (drop(drop_namespace="n"), IllegalRequest),
    (drop(drop_user="root"), IllegalRequest),
    (drop(drop_credential="rootkeyrootk"), IllegalRequest),
    (user("root"), IllegalRequest),
    (user("root", "superuser", is_disabled=True), IllegalRequest),
]


@pytest.mark.parametrize(("change", "error"), ILLEGAL)
def test_an_illegal_change_is_refused_and_so_are_those_before_it(
    change: AccessChange, error: type[MqError]
) -> None:
    access = set_up(namespace("n"), user("a", namespaces=["n"]))
    with pytest.raises(error):
        plan(access, user("other"), change)


def test_changes_build_on_those_before_them() -> None:
    access = set_up()
    made = make(
        access,
        namespace("team"),
        user("spiffe://prod/orders", "r", "r", namespaces=["team"]),
        key("spiffe://prod/orders"),
        policy("user:spiffe://prod/orders", "allow  publish,describe   topic  t"),
        policy("role:r", "deny * group g from 10.0.0.0/8"),
        quota("namespace:team", topics=3),
        quota("user:spiffe://prod/orders", streams=2),
        quota("default", streams=9),
    )
    assert len(made.changes) == len(made.records) == 8
    found = access.user("spiffe://prod/orders")
    assert found is not None
    assert ([*found.roles], found.created_at_ms) == (["r"], NOW_MS)
    assert [*access.lines_of("user:spiffe://prod/orders")] == ["allow publish,describe topic t"]
    make(access, drop_policy("user:spiffe://prod/orders", "allow describe,publish topic t"))
    assert not access.lines_of("user:spiffe://prod/orders")


def test_what_is_so_already_is_neither_written_nor_recorded() -> None:
    access = set_up(user("a", created_at_ms=7), key("a"), policy("user:a", LINE), namespace("n"))
    again = (
        user("a"),
        key("a"),
        policy("user:a", LINE),
        namespace("n"),
        drop(drop_user="nobody"),
        drop(drop_credential="zzzzzzzzzzzz"),
        drop_policy("user:nobody", LINE),
        drop(drop_quota="default"),
        drop(drop_namespace="none"),
    )
    assert plan(access, *again) == ([], [])
    # Another secret under the same id is another key.
    assert len(plan(access, key("a", phrase="another")).changes) == 1


def test_a_user_has_two_keys_and_a_third_when_one_has_expired() -> None:
    access = set_up(user("a"), key("a"), key("a", "bbbbbbbbbbbb", expires_at_ms=NOW_MS + 10))
    with pytest.raises(IllegalRequest, match="revoke one"):
        plan(access, key("a", "cccccccccccc"))
    # One that is there is replaced.
    plan(access, key("a", "bbbbbbbbbbbb", expires_at_ms=NOW_MS + 20))
    made = make(access, key("a", "cccccccccccc"), now_ms=NOW_MS + 10)
    assert [one.id for one in access.credentials_of("a")] == ["aaaaaaaaaaaa", "cccccccccccc"]
    assert [one.what for one in made.records] == ["credential_expired", "put_credential"]


def test_the_oldest_session_makes_room_for_a_new_one() -> None:
    access = set_up(user("a"))
    ids = ["".join(chr(97 + at) for _ in range(12)) for at in range(21)]
    for at, one in enumerate(ids):
        session = key("a", one, type=SESSION_KEY, created_at_ms=100 + at)
        made = make(access, session, internal="login")
    assert [one.id for one in access.credentials_of("a")] == ids[1:]
    assert [one.what for one in made.records] == ["session_ended", "login"]


def test_the_last_superuser_can_be_replaced_and_not_dropped() -> None:
    access = set_up(user("a"))
    with pytest.raises(IllegalRequest, match="last superuser"):
        plan(access, user("a", "superuser"), drop(drop_user="root"))
    make(access, user("a", "superuser"), key("a"), drop(drop_user="root"))
    assert access.superusers() == {"a"}
    # A key may be replaced by a password in one request, in whatever order.
    make(access, drop(drop_credential="aaaaaaaaaaaa"), password("a"))
    assert access.has_superuser()


def test_a_superuser_of_a_certificate_alone_stays_as_well() -> None:
    access = Access()
    make(access, user("admin.example.com", "superuser"))
    with pytest.raises(IllegalRequest, match="last superuser"):
        plan(access, drop(drop_user="admin.example.com"))


def test_users_change_credentials_of_their_own_alone() -> None:
    access = set_up(user("a"), user("b"), key("b", "bbbbbbbbbbbb"))
    make(access, key("a"), password("a"), own_user="a", by=By("a"))
    make(access, drop(drop_credential="aaaaaaaaaaaa"), own_user="a", by=By("a"))
    for change in (
        key("b", "cccccccccccc"),
        key("a", "bbbbbbbbbbbb"),
        drop(drop_credential="bbbbbbbbbbbb"),
        user("a", "superuser"),
        policy("user:a", LINE),
        quota("user:a"),
        namespace("n"),
        drop(drop_user="a"),
    ):
        with pytest.raises((PermissionDenied, IllegalRequest)):
            plan(access, change, own_user="a", by=By("a"))
    with pytest.raises(PermissionDenied):
        plan(access, drop(drop_credential="bbbbbbbbbbbb"), own_user="", by=By(""))


def test_there_is_a_limit_to_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    access = set_up(user("a"))
    lines = [policy("user:a", f"{LINE}{at}") for at in range(POLICIES_OF_SUBJECT_MAX)]
    make(access, *lines)
    with pytest.raises(IllegalRequest, match="use prefixes"):
        plan(access, policy("user:a", LINE))
    plan(access, *lines)
    with pytest.raises(IllegalRequest, match="at most 1000"):
        plan(access, *[user("a")] * 1_001)
    monkeypatch.setattr(module, "USERS_MAX", 2)
    monkeypatch.setattr(module, "NAMESPACES_MAX", 1)
    monkeypatch.setattr(module, "POLICIES_MAX", POLICIES_OF_SUBJECT_MAX)
    make(access, namespace("n"))
    for change in (user("b"), namespace("m"), policy("role:r", LINE)):
        with pytest.raises(IllegalRequest, match="that is all"):
            plan(access, change)
    plan(access, user("a", "r"), namespace("n"))


def test_a_namespace_with_topics_or_users_stays() -> None:
    access = set_up(namespace("n"))
    with pytest.raises(IllegalRequest, match="has topics"):
        plan(access, drop(drop_namespace="n"), has_topics=lambda name: name == "n")
    make(access, quota("namespace:n", topics=1))
    make(access, drop(drop_namespace="n"))
    assert access.namespace("n") is None
    assert access.quota("namespace:n") is None


def test_the_secret_of_an_access_key_is_encrypted_before_it_is_written() -> None:
    box, access = SecretBox(bytes(range(32))), set_up(user("a"))
    change = AccessChange(put_credential=ACCESS_KEY)
    (made,) = plan(access, change, box=box).changes
    proof = made.put_credential.proof
    assert box.opened(proof, "rocket") == b"secret of rocket"
    # All broker sets have the same bytes.
    assert plan(access, change, box=box).changes == [made]
    with pytest.raises(IllegalRequest, match="1 to 256"):
        plan(access, key("a", "rocket", type=HMAC_SHA1, proof=b""), box=box)
    with pytest.raises(IllegalRequest, match="access key"):
        plan(access, key("a", "password-root", type=HMAC_SHA1, proof=b"x"), box=box)


def test_a_secret_that_is_sealed_already_is_taken_as_it_is_if_it_can_be_opened() -> None:
    box, access = SecretBox(bytes(range(32))), set_up(user("a"))
    (made,) = plan(access, AccessChange(put_credential=ACCESS_KEY), box=box).changes
    sealed = AccessChange(put_credential=made.put_credential)
    sealed.put_credential.is_sealed = True
    # Same bytes as in the other set, and no trace of the way that they came.
    assert plan(access, sealed, box=box).changes == [made]
    other = SecretBox(bytes(range(1, 33)))
    with pytest.raises(IllegalRequest, match=r"same auth\.secret_key_file"):
        plan(access, sealed, box=other)
    with pytest.raises(IllegalRequest, match=r"need auth\.secret_key_file"):
        plan(access, sealed)
    # Sealed for another access key.
    sealed.put_credential.id = "rocket2"
    with pytest.raises(IllegalRequest, match="encrypted with another key"):
        plan(access, sealed, box=box)
    with pytest.raises(IllegalRequest, match="no other proofs"):
        plan(access, key("a", is_sealed=True), box=box)


def test_no_record_has_what_proves_a_credential() -> None:
    access = set_up(user("a"))
    made = make(access, key("a", phrase="s"), password("a"))
    made.records.extend(make(access, drop(drop_user="a")).records)
    text = repr(made.records)
    for change in made.changes:
        assert repr(change.put_credential.proof) not in text
    assert "scrypt" not in text
    assert "proof" not in text
    *_, dropped = made.records
    assert isinstance(dropped.before, dict)
    assert [one["type"] for one in dropped.before["credentials"]] == ["API_KEY", "PASSWORD"]


NAMES = st.sampled_from(["a", "b", "root"])
IDS = st.sampled_from(["aaaaaaaaaaaa", "bbbbbbbbbbbb", "rootkeyrootk"])
ANY = st.one_of(
    st.builds(user, NAMES, st.sampled_from(["superuser", "r"])),
    st.builds(lambda name: user(name, is_disabled=True), NAMES),
    st.builds(lambda name: drop(drop_user=name), NAMES),
    st.builds(key, NAMES, IDS),
    st.builds(lambda name: drop(drop_credential=name), IDS),
    st.builds(policy, st.sampled_from(["user:a", "role:r"]), st.sampled_from([LINE, "x"])),
)


@given(st.lists(st.lists(ANY, min_size=1, max_size=4), max_size=8))
def test_whatever_is_asked_for_a_superuser_can_come_in(
    requests: Sequence[Sequence[AccessChange]],
) -> None:
    access = set_up()
    for one in requests:
        version, digest = access.version, access.digest()
        try:
            made = make(access, *one)
        except MqError:
            assert (access.version, access.digest()) == (version, digest)
            continue
        assert len(made.changes) == len(made.records)
        assert access.has_superuser()
        # Once more, and nothing changes.
        again = access.fork()
        again.change(made.changes)
        assert again.encode().users == access.encode().users


# -- entries --------------------------------------------------------------------------------------


def changing(node: Node, **options: Any) -> AccessChanges:
    broker = node.broker
    audit = AuditTrail(
        broker.writer, node.machine, broker.leadership, lambda: node.now_ms, is_on=False
    )
    return AccessChanges(
        broker.writer, node.machine, broker.leadership, audit, lambda: node.now_ms, **options
    )


@on_loop
async def test_a_change_and_its_record_are_one_entry() -> None:
    node = Node()
    changes = changing(node)
    count = len(node.consensus.proposed)
    request = ChangeRequest([user("root", "superuser"), key("root")], ROOT)
    version = await soon(changes.change(request))
    access = node.machine.state.access
    assert version == (1, access.digest())
    assert len(node.consensus.proposed) == count + 1
    first, second = trail(node)
    assert first == {
        "at_ms": node.now_ms,
        "user": "root",
        "credential": "rootkeyrootk",
        "address": "10.0.0.9",
        "what": "put_user",
        "tag": "put_user",
        "keys": ["user:root"],
        "subject": "user:root",
        "before": None,
        "after": {"name": "root", "roles": ["superuser"], "created_at_ms": node.now_ms},
        "outcome": "done",
    }
    assert second["after"] == {
        "id": "aaaaaaaaaaaa",
        "user": "root",
        "type": "API_KEY",
        "created_at_ms": node.now_ms,
    }
    # The same again changes nothing, and the next one is an entry without a new topic.
    assert await soon(changes.change(request)) == version
    await soon(changes.change(ChangeRequest([user("a", "r")], By("root", "k", ""))))
    assert len(node.consensus.proposed) == count + 2
    assert trail(node)[2]["keys"] == ["user:a", "user:root"]
    topic = node.machine.state.topics.find(AUDIT_TOPIC)
    assert (topic.read_queues, topic.is_internal) == (1, True)
    assert node.machine.state.topics.readable(AUDIT_TOPIC) == topic
    with pytest.raises(PermissionDenied):
        node.machine.state.topics.writable(AUDIT_TOPIC, 0)
    with pytest.raises(PermissionDenied):
        await soon(node.broker.catalog.delete(AUDIT_TOPIC))
    again = Node(node.vfs_after_kill())
    assert again.machine.state.access.digest() == access.digest()
    assert len(trail(again)) == 3


@on_loop
async def test_requests_are_decided_one_after_the_other() -> None:
    node = Node()
    changes = changing(node)
    await soon(changes.change(ChangeRequest([user("a")], ROOT)))
    ids = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"]
    outcomes = await asyncio.gather(
        *(changes.change(ChangeRequest([key("a", one)], ROOT)) for one in ids),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes[2:]] == [IllegalRequest]
    assert len([*node.machine.state.access.credentials_of("a")]) == 2


@on_loop
async def test_only_the_leader_changes_something() -> None:
    node = Node()
    node.consensus.depose()
    with pytest.raises(NotLeader):
        await soon(changing(node).change(ChangeRequest([user("a")], ROOT)))
    await turns()
    assert node.machine.state.access.user("a") is None


@on_loop
async def test_topics_keep_their_namespace() -> None:
    node = Node()
    changes = changing(node)
    await soon(changes.change(ChangeRequest([namespace("n"), namespace("nn")], ROOT)))
    await node.topic("nn%t")
    await soon(changes.change(ChangeRequest([drop(drop_namespace="n")], ROOT)))
    with pytest.raises(IllegalRequest, match="has topics"):
        await soon(changes.change(ChangeRequest([drop(drop_namespace="nn")], ROOT)))
