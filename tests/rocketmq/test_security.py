"""Access keys of RocketMQ's clients: who they are, and what they may."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.client import Admin
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource
from tests.support.secured_broker import SecuredBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = "20261118T020000Z"


def code(answer: Any) -> str:
    return Code.Name(answer.status.code)


def signed(key_id: str, secret: str, date_time: str = NOW) -> dict[str, str]:
    signature = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex()
    return {
        "authorization": f"MQv2-HMAC-SHA1 Credential={key_id}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}",
        "x_mq_date_time": date_time,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("secured")
    secret = folder / "secret.key"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    with SecuredBroker(folder, "--auth-secret-key-file", str(secret)) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(secured: SecuredBroker) -> Iterator[Admin]:
    with Admin(secured.address, api_key=secured.root) as opened:
        yield opened


def test_an_access_key_does_what_its_user_may_and_no_more(
    secured: SecuredBroker, admin: Admin
) -> None:
    admin.create_user("alice")
    for line in (
        "allow publish topic orders",
        "allow describe topic orders",
        "allow consume topic orders",
        "allow consume group alice",
    ):
        admin.add_policy("user:alice", line)
    admin.create_topic("orders", queues=1)
    admin.create_topic("others", queues=1)
    key = admin.create_access_key("alice")
    with RawClient(secured.address, "c-1", **signed(key.id, key.secret)) as client:
        assert code(client.send(message("orders"))) == "OK"
        assert code(client.send(message("others"))) == "FORBIDDEN"
        route = service.QueryRouteRequest(topic=resource("others"))
        assert code(client.call("QueryRoute", route)) == "FORBIDDEN"
        assert len(client.receive("orders", "alice")) == 1
        (status,) = client.receive_raw("orders", "bob", wait_s=0)
        assert code(status) == "FORBIDDEN"
        settings = pb.Settings(publishing=pb.Publishing(topics=[resource("orders")]))
        answer = next(client.telemetry([service.TelemetryCommand(settings=settings)]))
        assert answer.settings.publishing.max_body_size
    admin.revoke_key(key.id)
    with RawClient(secured.address, "c-1", **signed(key.id, key.secret)) as client:
        assert code(client.send(message("orders"))) == "UNAUTHORIZED"


def test_callers_that_are_not_known_are_refused(secured: SecuredBroker, admin: Admin) -> None:
    admin.create_user("carol")
    key = admin.create_access_key("carol")
    empty = {
        "authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00"
    }
    wrong = [
        {},
        empty,
        signed(key.id, "another secret"),
        signed("nobody", key.secret),
        {**signed(key.id, key.secret), "x_mq_date_time": "another time"},
        {"authorization": "Bearer nothing"},
    ]
    for metadata in wrong:
        with RawClient(secured.address, "c-2", **metadata) as client:
            assert code(client.send(message("orders"))) == "UNAUTHORIZED", metadata
            (status,) = client.receive_raw("orders", "g", wait_s=0)
            assert code(status) == "UNAUTHORIZED"
            with pytest.raises(grpc.RpcError) as raised:
                next(client.telemetry([]))
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_own_keys_work_as_well(secured: SecuredBroker) -> None:
    metadata = {"authorization": f"Bearer {secured.root}"}
    with RawClient(secured.address, "c-3", **metadata) as client:
        assert code(client.send(message(new_name("topic")))) == "OK"


def test_a_user_of_a_namespace_is_inside_of_it(secured: SecuredBroker, admin: Admin) -> None:
    admin.create_namespace("acme")
    admin.create_user("dave", namespaces=["acme"])
    admin.add_policy("user:dave", "allow * topic acme%*")
    admin.add_policy("user:dave", "allow * group acme%*")
    key = admin.create_access_key("dave")
    with RawClient(secured.address, "c-4", **signed(key.id, key.secret)) as client:
        assert code(client.send(message("inner"))) == "OK"
        (found,) = client.receive("inner", "crew")
        assert found.topic.name == "inner"
        (found,) = client.receive("inner", "crew-2", namespace="acme")
        assert (found.topic.resource_namespace, found.topic.name) == ("acme", "inner")
        assert code(client.send(message("inner", namespace="other"))) == "FORBIDDEN"
    assert "acme%inner" in [one.info.topic for one in admin.list_topics()]
