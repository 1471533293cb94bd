"""A broker that wants to know its callers, with users in namespaces.

    with tenants_broker(tmp_path, ann=["acme"], ben=["rival"]) as tenants:
        tenants.calls("ann")("ListTopics")

Each user may do everything to topics and groups, by policies that name no namespace; `root` is a
superuser.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import grpc

from mq.access import keys
from mq.wire.v1 import security_pb2 as pb
from tests.conformance.calls import CHANNEL_OPTIONS, Calls
from tests.support.namespaced import with_metadata
from tests.support.secured_broker import SecuredBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHANGE = "/mq.v1.SecurityService/ChangeAccess"
# Names of others included, if there were nothing but policies.
_ALL = ("allow * topic *", "allow * group *")


class Tenants:
    def __init__(self, broker: SecuredBroker) -> None:
        self.broker = broker
        self.keys: dict[str, str] = {}
        self._open = contextlib.ExitStack()
        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        self._channel = self._open.enter_context(
            grpc.insecure_channel(broker.address, options=options)
        )

    def change(self, *changes: pb.AccessChange, **metadata: str) -> None:
        request = pb.ChangeAccessRequest(changes=changes).SerializeToString()
        channel = with_metadata(self._channel, **metadata)
        channel.unary_unary(_CHANGE)(request, timeout=30)

    def user_changes(self, name: str, *namespaces: str, **fields: Any) -> list[pb.AccessChange]:
        key = keys.new()
        self.keys[name] = key.text
        credential = pb.Credential(
            id=key.id, user=name, type=pb.API_KEY, proof=keys.digest(key.secret)
        )
        user = pb.User(name=name, namespaces=namespaces, **fields)
        return [
            *(pb.AccessChange(put_namespace={"name": one}) for one in namespaces),
            pb.AccessChange(put_user=user),
            pb.AccessChange(put_credential=credential),
            *(
                pb.AccessChange(put_policy={"subject": f"user:{name}", "line": line})
                for line in _ALL
            ),
        ]

    def channel(self, user: str, **metadata: str) -> grpc.Channel:
        return with_metadata(self._channel, authorization=f"Bearer {self.keys[user]}", **metadata)

    def calls(self, user: str, **metadata: str) -> Calls:
        return Calls(self.channel(user, **metadata))

    def close(self) -> None:
        self._open.close()


@contextlib.contextmanager
def tenants_broker(folder: Path, *flags: str, **users: list[str]) -> Iterator[Tenants]:
    with SecuredBroker(folder, *flags) as broker:
        tenants = Tenants(broker)
        tenants.keys["root"] = broker.root
        for name, namespaces in users.items():
            changes = tenants.user_changes(name, *namespaces)
            tenants.change(*changes, authorization=f"Bearer {broker.root}")
        try:
            yield tenants
        finally:
            tenants.close()
