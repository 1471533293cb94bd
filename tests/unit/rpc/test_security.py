"""SecurityService, for callers of all kinds: who may change and see what."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest

from mq.access import keys
from mq.errors import FlowControl
from mq.http2.calls import CallAborted
from mq.rpc.context import UnaryHandler
from mq.rpc.status import CODE_KEY
from mq.wire.v1 import security_pb2 as pb
from tests.support.consensus import on_loop, soon, turns
from tests.unit.broker.security.access_scene import (
    drop,
    key,
    namespace,
    password,
    policy,
    quota,
    trail,
    user,
)
from tests.unit.rpc.test_access import FakeCall, Scene

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from mq.rpc.context import Context


async def ask(
    scene: Scene, name: str, caller: str, request: Message, **connection: str | bool
) -> Any:
    """The response, or the code of the error."""
    method = scene.methods[f"SecurityService/{name}"]
    handler = scene.dispatcher.handler("SecurityService", method)
    assert isinstance(handler, UnaryHandler)
    call = FakeCall(scene.keys.get(caller), [])
    vars(call).update(connection)
    answer = handler.serve(request.SerializeToString(), cast("Context", call))
    assert inspect.isawaitable(answer)
    try:
        data = await soon(answer)
    except CallAborted as aborted:
        return str(dict(aborted.metadata)[CODE_KEY])
    response: type[Message] = getattr(pb, f"{name}Response")
    return response.FromString(data)


async def change(scene: Scene, caller: str, *changes: pb.AccessChange) -> Any:
    return await ask(scene, "ChangeAccess", caller, pb.ChangeAccessRequest(changes=changes))


@on_loop
async def test_superusers_change_everything_and_others_credentials_of_their_own() -> None:
    scene = await Scene.begin()
    access = scene.node.machine.state.access
    made = await change(scene, "root", user("bob", "r"), policy("role:r", "allow consume group g"))
    assert (made.version, made.digest) == (access.change_count, access.digest())
    for refused in (
        user("alice", "superuser"),
        policy("user:alice", "allow * topic *"),
        quota("default", streams=1),
        namespace("n"),
        key("bob"),
        key("root"),
        drop(drop_user="bob"),
        drop(drop_credential=scene.keys["root"].split("_")[1]),
    ):
        assert await change(scene, "alice", refused) == "PERMISSION_DENIED"
    assert await change(scene, "alice", key("alice"), refused) == "PERMISSION_DENIED"
    assert (await change(scene, "alice", key("alice"))).version == access.change_count
    assert await change(scene, "alice", key("alice", "rootkeyrootk"), password("alice")) == (
        "ILLEGAL_REQUEST"
    )
    (record,) = [one for one in trail(scene.node) if one["what"] == "put_credential"]
    assert (record["user"], record["address"]) == ("alice", "10.0.0.7")


@on_loop
async def test_what_proves_a_credential_is_shown_to_nobody() -> None:
    scene = await Scene.begin()
    await change(scene, "root", password("alice"), namespace("n"), quota("default", streams=1))
    await change(scene, "root", policy("user:alice", "allow consume group g"), user("bob"))
    found = await ask(scene, "DescribeAccess", "root", pb.DescribeAccessRequest())
    access = scene.node.machine.state.access
    assert found.digest == access.digest()
    assert [one.name for one in found.state.users] == ["alice", "bob", "root"]
    assert len(found.state.credentials) == 3
    assert all(not one.proof for one in found.state.credentials)
    # What is stored has not lost it.
    assert all(one.proof for one in access.encode().credentials)
    own = await ask(scene, "DescribeAccess", "alice", pb.DescribeAccessRequest())
    assert [one.name for one in own.state.users] == ["alice"]
    assert {one.user for one in own.state.credentials} == {"alice"}
    assert all(not one.proof for one in own.state.credentials)
    assert [one.subject for one in own.state.policies] == ["user:alice"]
    assert [one.subject for one in own.state.quotas] == ["default"]
    assert (own.digest, [*own.state.namespaces]) == (b"", [])


PROOFS = pb.DescribeAccessRequest(with_proofs=True)
LOOPBACK = ["ipv4:127.0.0.1:50000", "ipv6:[::1]:50000", "ipv6:%5B::ffff:127.0.0.1%5D:50000"]


@on_loop
async def test_proofs_are_shown_to_superusers_and_the_trail_tells_of_it() -> None:
    scene = await Scene.begin()
    await change(scene, "root", password("alice"))
    stored = {one.id: one.proof for one in scene.node.machine.state.access.encode().credentials}
    connections: list[dict[str, str | bool]] = [{"is_by_tls": True}]
    connections += [{"address": one} for one in LOOPBACK]
    for connection in connections:
        found = await ask(scene, "DescribeAccess", "root", PROOFS, **connection)
        assert {one.id: one.proof for one in found.state.credentials} == stored
        assert not any(one.is_sealed for one in found.state.credentials)
        record = trail(scene.node)[-1]
        assert (record["what"], record["subject"]) == ("describe_proofs", "cluster:access")
        assert (record["user"], record["credentials"]) == ("root", len(stored))
    assert len([one for one in trail(scene.node) if one["what"] == "describe_proofs"]) == 4


@on_loop
async def test_proofs_do_not_cross_a_network_in_plaintext() -> None:
    scene = await Scene.begin()
    for address in ("ipv4:10.0.0.7:50000", "ipv6:[2001:db8::1]:50000", "unknown"):
        code = await ask(scene, "DescribeAccess", "root", PROOFS, address=address)
        assert code == "PERMISSION_DENIED"
    assert not [one for one in trail(scene.node) if one["what"] == "describe_proofs"]
    scene.node.pass_time(1_000)
    await turns()
    record = trail(scene.node)[-1]
    assert (record["what"], record["subject"]) == ("denied", "cluster:access")
    assert "connect with TLS" in record["reason"]


@pytest.mark.parametrize("mode", ["required", "observe", "off"])
@on_loop
async def test_proofs_are_for_superusers_in_every_mode(mode: str) -> None:
    scene = await Scene.begin(mode)
    for caller in ("alice", "nobody") if mode == "required" else ("", "alice"):
        code = await ask(scene, "DescribeAccess", caller, PROOFS, is_by_tls=True)
        assert code in ("PERMISSION_DENIED", "UNAUTHENTICATED")
    if mode == "observe":
        assert (await ask(scene, "DescribeAccess", "root", PROOFS, is_by_tls=True)).digest


@on_loop
async def test_proofs_that_cannot_be_recorded_are_not_shown() -> None:
    scene = await Scene.begin()
    scene.node.consensus.failure = FlowControl("too much waits")
    code = await ask(scene, "DescribeAccess", "root", PROOFS, is_by_tls=True)
    assert code == "FLOW_CONTROL"


@on_loop
async def test_a_change_of_what_was_changed_since_is_refused() -> None:
    scene = await Scene.begin()
    access = scene.node.machine.state.access
    version = access.change_count
    first = pb.ChangeAccessRequest(changes=[user("bob", "r")], expected_version=version)
    second = pb.ChangeAccessRequest(changes=[user("bob", "s")], expected_version=version)
    made = await ask(scene, "ChangeAccess", "root", first)
    assert made.version == version + 1
    assert await ask(scene, "ChangeAccess", "root", second) == "VERSION_MISMATCH"
    # Its answer may have been lost.
    assert (await ask(scene, "ChangeAccess", "root", first)).version == version + 1
    second.expected_version = made.version
    assert (await ask(scene, "ChangeAccess", "root", second)).version == version + 2
    second.expected_version = 0
    assert await ask(scene, "ChangeAccess", "root", second)


@on_loop
async def test_callers_learn_who_they_are() -> None:
    scene = await Scene.begin()
    found = await ask(scene, "WhoAmI", "alice", pb.WhoAmIRequest())
    assert (found.user, found.auth_mode, found.address) == ("alice", "required", "10.0.0.7")
    assert found.credential == scene.keys["alice"].split("_")[1]
    assert await ask(scene, "WhoAmI", "nobody", pb.WhoAmIRequest()) == "UNAUTHENTICATED"


@on_loop
async def test_a_login_needs_no_identity_and_its_key_is_one() -> None:
    scene = await Scene.begin()
    await change(scene, "root", password("alice"))
    made = keys.new()
    request = pb.LoginRequest(
        user="alice",
        password="correct horse",  # noqa: S106 - of no one
        key_id=made.id,
        key_digest=keys.digest(made.secret),
    )
    answer = await ask(scene, "Login", "nobody", request)
    scene.keys["session"] = made.text
    found = await ask(scene, "WhoAmI", "session", pb.WhoAmIRequest())
    assert (found.user, found.expires_at_ms) == ("alice", answer.expires_at_ms)
    # A session is revoked by its owner, at once.
    assert (await change(scene, "session", drop(drop_credential=made.id))).version
    assert await ask(scene, "WhoAmI", "session", pb.WhoAmIRequest()) == "UNAUTHENTICATED"
    request.password = "wrong horse"  # noqa: S105 - of no one
    assert await ask(scene, "Login", "nobody", request) == "UNAUTHENTICATED"


def question(name: str, action: str = "publish", kind: str = "topic") -> pb.CheckAccessRequest:
    return pb.CheckAccessRequest(user=name, action=action, kind=kind, name="orders")


@on_loop
async def test_a_question_is_answered_with_the_line_that_decides() -> None:
    scene = await Scene.begin()
    await change(
        scene,
        "root",
        user("bob", "r"),
        policy("role:r", "allow publish topic orders"),
        policy("user:bob", "deny publish topic * from 10.0.0.0/8"),
    )
    found = await ask(scene, "CheckAccess", "root", question("bob"))
    assert found.is_allowed
    assert (found.policy.subject, found.policy.line) == ("role:r", "allow publish topic orders")
    request = question("bob")
    request.address = "10.1.1.1"
    found = await ask(scene, "CheckAccess", "root", request)
    assert not found.is_allowed
    assert found.policy.subject == "user:bob"
    found = await ask(scene, "CheckAccess", "alice", question("alice"))
    assert (found.is_allowed, found.HasField("policy")) == (False, False)
    found = await ask(scene, "CheckAccess", "root", question("root"))
    assert (found.is_allowed, found.is_superuser) == (True, True)
    await change(scene, "root", user("bob", "r", is_disabled=True))
    assert not (await ask(scene, "CheckAccess", "root", question("bob"))).is_allowed


@on_loop
async def test_a_question_is_about_full_names_and_answered_from_inside_of_the_namespace() -> None:
    scene = await Scene.begin()
    await change(
        scene,
        "root",
        namespace("east"),
        namespace("west"),
        user("bob", namespaces=["east", "west"]),
        policy("user:bob", "allow publish topic *"),
    )
    for name, is_allowed in [("orders", False), ("east%orders", True), ("west%orders", True)]:
        request = question("bob")
        request.name = name
        found = await ask(scene, "CheckAccess", "root", request)
        assert found.is_allowed == is_allowed


@pytest.mark.parametrize(
    ("caller", "request_", "code"),
    [
        ("alice", question("root"), "PERMISSION_DENIED"),
        ("root", question("nobody"), "USER_NOT_FOUND"),
        ("root", question("root", "fly"), "ILLEGAL_REQUEST"),
        ("root", question("root", "publish", "moon"), "ILLEGAL_REQUEST"),
    ],
)
@on_loop
async def test_a_question_that_makes_no_sense_is_refused(
    caller: str, request_: pb.CheckAccessRequest, code: str
) -> None:
    scene = await Scene.begin()
    assert await ask(scene, "CheckAccess", caller, request_) == code


@on_loop
async def test_while_the_gate_observes_a_stranger_makes_no_users_all_the_same() -> None:
    for mode in ("observe", "off"):
        scene = await Scene.begin(mode)
        change = pb.AccessChange(put_user=pb.User(name="mallory", roles=["superuser"]))
        request = pb.ChangeAccessRequest(changes=[change])
        for caller in ("", "alice"):
            assert await ask(scene, "ChangeAccess", caller, request) == "PERMISSION_DENIED"
        assert scene.node.broker.state.access.user("mallory") is None


@on_loop
async def test_while_the_gate_observes_superusers_prepare_what_will_hold() -> None:
    scene = await Scene.begin("observe")
    change = pb.AccessChange(put_user=pb.User(name="bob"))
    answer = await ask(scene, "ChangeAccess", "root", pb.ChangeAccessRequest(changes=[change]))
    assert answer.version
    seen = await ask(scene, "DescribeAccess", "", pb.DescribeAccessRequest())
    assert not seen.state.users
