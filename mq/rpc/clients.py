"""Connections of this node, as an operator sees them: from where, in which language, as whom, and
what they do now.

The transport knows connections and calls; the broker knows which member of a group came from which
address. A list is made of those that are there while it is made, in the order of connecting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mq.broker.broker import Broker
from mq.broker.security.gate import Principal
from mq.errors import IllegalRequest
from mq.http2.requests import Request
from mq.http2.server import Peer
from mq.rpc.context import Listener
from mq.wire.v1 import admin_pb2 as pb

LIST_MAX = 1_000
_LIST_DEFAULT = 100
_USER_AGENT_SHOWN = 200
# As gRPC's libraries call themselves: grpc-python-asyncio/1.60.0 grpc-c/..., grpc-go/1.60.1.
_PRODUCT = re.compile(r"grpc-([a-z+#]+)(?:-[a-z0-9-]+)?/([0-9A-Za-z.+-]{1,30})", re.ASCII)
_LANGUAGES = {"node": "node", "js": "node", "c": "c++", "dotnet": "c#", "csharp": "c#"}


class Software(NamedTuple):
    user_agent: str = ""
    language: str = ""
    version: str = ""


class Clients:
    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        """More may be added to `listeners`."""
        self._broker = broker
        self._listeners = listeners

    async def listed(self, request: pb.ListClientsRequest) -> pb.ListClientsResponse:
        count = request.clients_max or _LIST_DEFAULT
        if count > LIST_MAX:
            raise IllegalRequest(f"clients_max = {count}: at most {LIST_MAX}")
        if request.page and not re.fullmatch(r"[0-9]{1,18}", request.page, re.ASCII):
            raise IllegalRequest(
                f"page = {request.page[:60]!r} is none: give `next_page` of the answer before, or "
                "leave it out"
            )
        answer = pb.ListClientsResponse(node_id=self._broker.settings.config.node.id)
        for one in self._listeners:
            answer.connections += await one.connections()
        after = int(request.page or 0)
        found: list[Peer] = []
        for one in self._listeners:
            peers = one.peers(after, count + 1)
            answer.is_count_only |= peers is None
            found += peers or ()
        found.sort()
        used = self._used() if found else {}
        for peer in found[:count]:
            answer.clients.append(self._client(peer, *used.get(peer.address, (set(), set()))))
        if len(found) > count:
            answer.next_page = str(found[count - 1].number)
        return answer

    def _used(self) -> dict[str, tuple[set[str], set[str]]]:
        """Groups and topics of the members behind each address."""
        used: dict[str, tuple[set[str], set[str]]] = {}
        for name in self._broker.groups.names():
            live = self._broker.groups.live(name)
            for member in live.members.values() if live else ():
                groups, topics = used.setdefault(member.spec.address, (set(), set()))
                groups.add(name)
                topics.update(member.spec.subscriptions)
        return used

    def _client(self, peer: Peer, groups: set[str], topics: set[str]) -> pb.ClientInfo:
        request = peer.request
        caller = request.caller if request is not None else None
        known = software(request) if request is not None else Software()
        return pb.ClientInfo(
            address=peer.address.partition(":")[2],
            **known._asdict(),
            user=caller.user if isinstance(caller, Principal) else "",
            connected_at_ms=self._broker.now_ms() - int(peer.age_s * 1_000),
            calls=peer.calls,
            in_flight=[
                pb.ClientCalls(method=_method(path), count=count)
                for path, count in sorted(peer.in_flight.items())
            ],
            is_encrypted=peer.is_encrypted,
            groups=sorted(groups),
            topics=sorted(topics),
        )


def _method(path: bytes) -> str:
    """/mq.v1.ConsumerService/Subscribe is ConsumerService/Subscribe."""
    return path.decode("latin-1").rpartition(".")[2][:100]


def software(request: Request) -> Software:
    """RocketMQ's clients say it in fields of their own."""
    fields = {name: value for name, value in request.metadata if isinstance(value, str)}
    user_agent = fields.get("user-agent", "")[:_USER_AGENT_SHOWN]
    if language := fields.get("x-mq-language", ""):
        version = fields.get("x-mq-client-version", "")
        return Software(user_agent, f"{language.lower()[:20]} (rocketmq)", version[:40])
    return Software(user_agent, *language_of(user_agent))


def language_of(user_agent: str) -> tuple[str, str]:
    """Language and version of the library; empty: it does not say."""
    found = _PRODUCT.search(user_agent)
    if found is None:
        return "", ""
    return _LANGUAGES.get(found[1], found[1]), found[2]
