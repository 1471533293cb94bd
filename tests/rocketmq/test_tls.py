"""One port for clients with TLS and without, and routes that name the door that was asked."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from pathlib import Path


def test_both_kinds_of_clients_use_one_port(tmp_path: Path) -> None:
    files = Authority(tmp_path / "authority").files()
    flags = {"--broker-tls": "optional", **files.flags("broker")}
    topic, group = new_name("topic"), new_name("group")
    with (
        BrokerProcess(tmp_path / "data", *itertools.chain.from_iterable(flags.items())) as broker,
        RawClient(broker.address) as plain,
        RawClient.over_tls(broker.address, files.credentials()) as secure,
    ):
        for client in (plain, secure):
            assert client.send(message(topic)).status.code == Code.OK
        found = secure.receive(topic, group)
        found += plain.receive(topic, group, wait_s=1) if len(found) < 2 else []
        assert len(found) == 2


def test_a_route_names_the_door_that_was_asked(tmp_path: Path) -> None:
    outside = free_port()
    listen = f"127.0.0.1:{outside}"
    with BrokerProcess(tmp_path / "data", "--broker-external-listen", listen) as broker:
        topic = new_name("topic")
        for address in (broker.address, listen):
            with RawClient(address) as client:
                request = service.QueryRouteRequest(topic=resource(topic))
                route = client.call("QueryRoute", request)
                (place,) = route.message_queues[0].broker.endpoints.addresses
                assert f"{place.host}:{place.port}" == address
