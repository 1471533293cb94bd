"""The gate: who is known, what is refused, and which streams end."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import pytest

from mq.access import keys
from mq.access.policies import Action, Kind, Resource, group_resource, topic_resource
from mq.access.secrets import SecretBox, Signed
from mq.broker.security.gate import EVERYBODY, Denial, Gate, LiveStream, Principal
from mq.broker.state.access import Access
from mq.errors import IllegalRequest, MqError, PermissionDenied, Unauthenticated
from mq.wire.v1.security_pb2 import (
    API_KEY,
    HMAC_SHA1,
    PASSWORD,
    AccessChange,
    AccessPolicy,
    Credential,
    User,
)

if TYPE_CHECKING:
    from mq.access.keys import ApiKey

HERE = "127.0.0.1"
SECRET = "of the access key"  # noqa: S105 - none but of this test
ORDERS = topic_resource("orders")


class Scene:
    """A gate over users that the test makes, with its own time."""

    def __init__(self, mode: str = "required") -> None:
        self.now_ms = 1_000
        self.access = Access()
        self.told: list[Denial] = []
        self.box = SecretBox(bytes(32))
        self.gate = Gate(self.access, mode, lambda: self.now_ms, self.told.append, box=self.box)

    def change(self, **change: Any) -> None:
        self.access.change([AccessChange(**change)])
        self.gate.on_change()

    def user(self, name: str, *lines: str, **fields: Any) -> None:
        self.change(put_user=User(name=name, **fields))
        for line in lines:
            self.change(put_policy=AccessPolicy(subject=f"user:{name}", line=line))

    def key(self, user: str, expires_at_ms: int = 0) -> ApiKey:
        key = keys.new()
        self.change(
            put_credential=Credential(
                id=key.id,
                user=user,
                type=API_KEY,
                proof=keys.digest(key.secret),
                expires_at_ms=expires_at_ms,
            )
        )
        return key

    def access_key(self, user: str, key_id: str = "key-1", secret: str = SECRET) -> None:
        proof = self.box.sealed(secret.encode(), key_id)
        self.change(put_credential=Credential(id=key_id, user=user, type=HMAC_SHA1, proof=proof))

    def signer(self, secret: str = SECRET, key_id: str = "key-1", at: str = "now") -> Principal:
        signature = hmac.digest(secret.encode(), b"now", "sha1").hex().upper()
        return self.gate.identify_signed(Signed(key_id, signature), at, HERE)

    def caller(self, key: ApiKey) -> Principal:
        return self.gate.identify(f"Bearer {key.text}", (), HERE)

    def stream(self, key: ApiKey) -> tuple[LiveStream, list[MqError]]:
        ended: list[MqError] = []
        return self.gate.enter(self.caller(key), ended.append), ended


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.user("alice", "allow publish topic orders")
    return scene


def test_a_key_is_the_user_that_it_was_made_for(scene: Scene) -> None:
    key = scene.key("alice")
    caller = scene.caller(key)
    assert (caller.user, caller.credential, caller.address) == ("alice", key.id, HERE)
    assert scene.caller(key) is caller  # decided once
    assert key.secret not in repr(caller)


def test_a_key_that_proves_nothing_is_refused_with_one_text_for_all_reasons(scene: Scene) -> None:
    key, expired = scene.key("alice"), scene.key("alice", expires_at_ms=999)
    wrong = keys.ApiKey(key.id, keys.new().secret)
    scene.user("bob", is_disabled=True)
    for one in (wrong, expired, keys.new(), scene.key("bob")):
        with pytest.raises(Unauthenticated, match="is not known, has expired, was revoked") as told:
            scene.caller(one)
        assert one.secret not in str(told.value)
    assert [one.need for one in scene.told] == [None] * 4


@pytest.mark.parametrize("text", ["", "Basic x", "mqk_x", "Bearer ", "Bearer x"])
def test_an_authorization_of_another_form_is_refused(scene: Scene, text: str) -> None:
    with pytest.raises(Unauthenticated, match="not of the form"):
        scene.gate.identify(text, (), HERE)


def test_a_password_is_no_key(scene: Scene) -> None:
    key = keys.new()
    proof = keys.digest(key.secret)
    scene.change(put_credential=Credential(id=key.id, user="alice", type=PASSWORD, proof=proof))
    with pytest.raises(Unauthenticated):
        scene.caller(key)


def test_a_certificate_is_the_user_of_exactly_its_name(scene: Scene) -> None:
    assert scene.gate.identify(None, ("other", "alice"), HERE).user == "alice"
    for names in [("alice.example",), ("ALICE",), ()]:
        with pytest.raises(Unauthenticated):
            scene.gate.identify(None, names, HERE)


def test_what_no_policy_allows_is_denied_and_told(scene: Scene) -> None:
    caller = scene.caller(scene.key("alice"))
    scene.gate.check(caller, Action.PUBLISH, ORDERS)
    with pytest.raises(PermissionDenied, match="no policy allows user alice to consume topic"):
        scene.gate.check(caller, Action.CONSUME, ORDERS)
    scene.user("alice", "deny publish topic or*")
    with pytest.raises(PermissionDenied, match=r"user:alice has deny publish topic or\*"):
        scene.gate.check(scene.caller(scene.key("alice")), Action.PUBLISH, ORDERS)
    assert [one.is_enforced for one in scene.told] == [True, True]


def test_a_first_message_needs_to_be_allowed_to_create_the_topic(scene: Scene) -> None:
    caller = scene.caller(scene.key("alice"))
    with pytest.raises(PermissionDenied, match="to create topic orders"):
        scene.gate.check_publish(caller, "orders", is_new=True)
    scene.gate.check_publish(caller, "orders", is_new=False)
    assert caller.publishes == {"orders"}


def test_a_superuser_may_do_everything(scene: Scene) -> None:
    scene.user("root", roles=["superuser"])
    caller = scene.caller(scene.key("root"))
    scene.gate.check(caller, Action.DELETE, topic_resource("%SYS%AUDIT"))
    scene.gate.check_superuser(caller, "log")
    with pytest.raises(PermissionDenied, match="is for superusers"):
        scene.gate.check_superuser(scene.caller(scene.key("alice")), "log")


def test_a_role_brings_its_policies(scene: Scene) -> None:
    scene.user("carol", roles=["reader"])
    scene.change(put_policy=AccessPolicy(subject="role:reader", line="allow consume topic *"))
    scene.gate.check(scene.caller(scene.key("carol")), Action.CONSUME, ORDERS)


def test_while_it_observes_nothing_is_refused_and_everything_told() -> None:
    scene = Scene("observe")
    scene.user("alice")
    anonymous = scene.gate.identify(None, (), HERE)
    assert anonymous.user == ""
    scene.gate.check(anonymous, Action.PUBLISH, ORDERS)
    scene.gate.check(scene.caller(scene.key("alice")), Action.PUBLISH, ORDERS)
    assert [(one.principal.user, one.is_enforced) for one in scene.told] == [
        ("", False),
        ("", False),
        ("alice", False),
    ]
    assert scene.gate.may(anonymous, Action.DESCRIBE, ORDERS)


def test_while_it_is_off_everybody_may_do_everything() -> None:
    scene = Scene("off")
    caller = scene.gate.identify("Bearer nonsense", (), HERE)
    assert caller is EVERYBODY
    scene.gate.check(caller, Action.DELETE, ORDERS)
    assert scene.told == []


def test_a_revoked_key_ends_its_streams_and_no_others(scene: Scene) -> None:
    key, other = scene.key("alice"), scene.key("alice")
    _, ended = scene.stream(key)
    _, going_on = scene.stream(other)
    scene.change(drop_credential=key.id)
    [error] = ended
    assert isinstance(error, Unauthenticated)
    assert "was revoked" in str(error)
    assert going_on == []
    with pytest.raises(Unauthenticated):
        scene.caller(key)


def test_a_disabled_or_dropped_user_ends_its_streams(scene: Scene) -> None:
    scene.user("bob")
    _, of_alice = scene.stream(scene.key("alice"))
    _, of_bob = scene.stream(scene.key("bob"))
    scene.user("alice", is_disabled=True)
    scene.change(drop_user="bob")
    assert [type(one) for one in (*of_alice, *of_bob)] == [Unauthenticated, Unauthenticated]


def test_a_key_that_was_replaced_under_its_id_ends_the_streams_of_the_old_one(
    scene: Scene,
) -> None:
    key = scene.key("alice")
    _, ended = scene.stream(key)
    new = keys.digest(keys.new().secret)
    scene.change(put_credential=Credential(id=key.id, user="alice", type=API_KEY, proof=new))
    assert len(ended) == 1


def test_a_stream_that_may_not_go_on_ends(scene: Scene) -> None:
    stream, ended = scene.stream(scene.key("alice"))
    stream.needs.append((Action.PUBLISH, ORDERS))
    scene.user("alice", "allow consume group *")
    assert ended == []
    assert scene.gate.ruling(stream.principal, Action.CONSUME, group_resource("g")).is_allowed
    scene.user("alice", "deny publish topic orders")
    assert isinstance(ended[0], PermissionDenied)


def test_a_stream_ends_when_its_key_expires(scene: Scene) -> None:
    _, ended = scene.stream(scene.key("alice", expires_at_ms=2_000))
    scene.now_ms = 1_999
    scene.gate.tick()
    assert ended == []
    scene.now_ms = 2_000
    scene.gate.tick()
    scene.gate.tick()
    assert [type(one) for one in ended] == [Unauthenticated]


def test_a_stream_that_has_ended_is_not_ended_again(scene: Scene) -> None:
    key = scene.key("alice")
    stream, ended = scene.stream(key)
    scene.gate.leave(stream)
    scene.change(drop_credential=key.id)
    assert ended == []


def test_names_that_callers_choose_do_not_fill_the_memory(scene: Scene) -> None:
    caller = scene.caller(scene.key("alice"))
    for number in range(10_000):
        scene.gate.may(caller, Action.PUBLISH, topic_resource(f"t{number}"))
    assert len(caller._rulings) <= 4_096


# -- namespaces -----------------------------------------------------------------------------------

INSIDE = topic_resource("acme%orders")


@pytest.fixture
def tenant(scene: Scene) -> ApiKey:
    """Of a user whose policies name no namespace."""
    scene.user("ann", "allow * topic *", "allow * group *", namespaces=["acme", "east"])
    return scene.key("ann")


def test_policies_do_not_lead_out_of_the_namespace(scene: Scene, tenant: ApiKey) -> None:
    caller = scene.caller(tenant)
    assert caller.namespace == "acme"
    for inside in (INSIDE, group_resource("acme%g"), topic_resource("%RETRY%acme%g")):
        scene.gate.check(caller, Action.CONSUME, inside)
        assert scene.gate.may(caller, Action.CONSUME, inside)
    for name in ("orders", "rival%orders", "acme", "xacme%orders", "east%orders", "%DLQ%rival%g"):
        assert not scene.gate.may(caller, Action.DESCRIBE, topic_resource(name))
        with pytest.raises(PermissionDenied) as refusal:
            scene.gate.check(caller, Action.CONSUME, topic_resource(name))
        assert str(refusal.value) == "this is not in namespace acme"
    assert scene.told[-1].need == (Action.CONSUME, topic_resource("%DLQ%rival%g"))


def test_policies_hold_inside_of_the_namespace(scene: Scene) -> None:
    scene.user(
        "ben", "allow consume topic acme%orders", "deny * topic acme%s*", namespaces=["acme"]
    )
    caller = scene.caller(scene.key("ben"))
    scene.gate.check(caller, Action.CONSUME, INSIDE)
    with pytest.raises(PermissionDenied):
        scene.gate.check(caller, Action.PUBLISH, INSIDE)


def test_a_namespace_is_chosen_among_those_of_the_user(scene: Scene, tenant: ApiKey) -> None:
    identify = scene.gate.identify
    bearer = f"Bearer {tenant.text}"
    assert identify(bearer, (), HERE, "east").namespace == "east"
    assert identify(bearer, (), HERE).namespace == "acme"
    for namespace in ("rival", "", "acme%"):
        with pytest.raises(PermissionDenied, match="acme or east"):
            identify(bearer, (), HERE, namespace)
    plain = f"Bearer {scene.key('alice').text}"
    assert identify(plain, (), HERE).namespace == identify(plain, (), HERE, "").namespace == ""
    with pytest.raises(PermissionDenied, match="none at all"):
        identify(plain, (), HERE, "acme")


def test_superusers_choose_any_or_none(scene: Scene) -> None:
    scene.user("root", roles=["superuser"])
    bearer = f"Bearer {scene.key('root').text}"
    assert scene.gate.may(scene.gate.identify(bearer, (), HERE), Action.DELETE, INSIDE)
    inside = scene.gate.identify(bearer, (), HERE, "acme")
    scene.gate.check(inside, Action.DELETE, INSIDE)
    with pytest.raises(PermissionDenied):
        scene.gate.check(inside, Action.DELETE, ORDERS)
    with pytest.raises(IllegalRequest):
        scene.gate.identify(bearer, (), HERE, "a%b")


@pytest.mark.parametrize(
    ("namespaces", "code"),
    [
        (["acme"], None),
        (["east", "acme"], None),
        (["east"], PermissionDenied),
        ([], PermissionDenied),
    ],
)
def test_a_stream_lives_as_long_as_its_namespace_is_its_users(
    scene: Scene, tenant: ApiKey, namespaces: list[str], code: type[MqError] | None
) -> None:
    stream, ended = scene.stream(tenant)
    scene.user("ann", namespaces=namespaces)
    assert [type(one) for one in ended] == ([] if code is None else [code])
    if code is None:
        assert stream.principal.namespace == "acme"


def test_a_stream_with_full_names_ends_when_its_user_gets_a_namespace(scene: Scene) -> None:
    _, ended = scene.stream(scene.key("alice"))
    scene.user("alice", namespaces=["acme"])
    assert [type(one) for one in ended] == [PermissionDenied]


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_lists_stay_inside_also_while_nothing_is_refused(mode: str) -> None:
    scene = Scene(mode)
    caller = scene.gate.identify(None, (), HERE, "acme")
    assert caller.namespace == "acme"
    assert scene.gate.is_current(caller)
    assert scene.gate.may(caller, Action.DESCRIBE, INSIDE)
    assert not scene.gate.may(caller, Action.DESCRIBE, ORDERS)
    everybody = scene.gate.identify(None, (), HERE)
    assert scene.gate.may(everybody, Action.DESCRIBE, ORDERS)
    with pytest.raises(IllegalRequest):
        scene.gate.identify(None, (), HERE, "a%b")


def test_a_broker_of_the_cluster_may_greet_and_mend_and_nothing_else() -> None:
    cluster_key, told = keys.new(), list[Denial]()
    gate = Gate(Access(), "required", lambda: 0, told.append, lambda one: one == cluster_key)
    caller = gate.identify(f"Bearer {cluster_key.text}", (), HERE)
    assert (caller.user, caller.is_broker, caller.is_superuser) == ("cluster", True, False)
    gate.check(caller, Action.ALTER, Resource(Kind.CLUSTER, "sets"))
    gate.check_superuser(caller, "log")
    for action, resource in (
        (Action.PUBLISH, ORDERS),
        (Action.DESCRIBE, ORDERS),
        (Action.ALTER, Resource(Kind.CLUSTER, "members")),
        (Action.CONSUME, topic_resource("%SYS%AUDIT")),
    ):
        with pytest.raises(PermissionDenied):
            gate.check(caller, action, resource)
    with pytest.raises(PermissionDenied):
        gate.check_superuser(caller, "access")
    with pytest.raises(Unauthenticated):
        gate.identify(f"Bearer {keys.new().text}", (), HERE)


# -- access keys of RocketMQ ----------------------------------------------------------------------


def test_a_signature_is_the_user_of_its_access_key(scene: Scene) -> None:
    scene.access_key("alice")
    caller = scene.signer()
    assert (caller.user, caller.credential, caller.address) == ("alice", "key-1", HERE)
    assert scene.signer() is caller
    scene.gate.check(caller, Action.PUBLISH, ORDERS)


def test_a_signature_that_proves_nothing_is_refused(scene: Scene) -> None:
    scene.access_key("alice")
    scene.user("bob", is_disabled=True)
    scene.access_key("bob", "key-2")
    scene.change(
        put_credential=Credential(id="key-3", user="alice", type=HMAC_SHA1, proof=b"damaged")
    )
    key = scene.key("alice")
    wrong = [
        {"secret": "another"},
        {"at": "later"},
        {"key_id": "unknown"},
        {"key_id": "key-2"},
        {"key_id": "key-3"},
        {"key_id": key.id},
    ]
    for one in wrong:
        with pytest.raises(Unauthenticated, match="is not known, has expired, was revoked"):
            scene.signer(**one)
    scene.change(drop_credential="key-1")
    with pytest.raises(Unauthenticated):
        scene.signer()


def test_while_it_observes_a_wrong_signature_is_anonymous() -> None:
    scene = Scene("observe")
    assert scene.signer().user == ""
    assert len(scene.told) == 1
    assert Scene("off").signer() is EVERYBODY


def test_a_replaced_access_key_needs_its_new_secret(scene: Scene) -> None:
    scene.access_key("alice")
    scene.signer()
    scene.access_key("alice", "key-1", "new")
    with pytest.raises(Unauthenticated):
        scene.signer()
    assert scene.signer("new").user == "alice"
