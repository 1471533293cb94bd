"""Brokers of several sets without a network, which greet each other when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mq.broker.contracts import Leading, Peer
from mq.broker.directory import Directory
from mq.broker.state.state import State
from mq.store.identity import Identity
from mq.wire.v1.state_pb2 import PutTopic

if TYPE_CHECKING:
    from collections.abc import Sequence

T0 = 1_000_000


class _Log:
    """A `Consensus` that only names its members."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = peers
        self.term, self.leader = 1, peers[0].node_id

    @property
    def leading_term(self) -> int:
        return self.term

    @property
    def leading(self) -> Leading:
        return Leading(self.term, self.leader, f"{self.leader}:1")

    def propose(self, *_: Any) -> None:
        raise NotImplementedError


class Node:
    """A broker of a set, as far as other sets see it."""

    births = iter(range(1 << 40, 1 << 50, 1 << 20))

    def __init__(
        self,
        broker_set: str,
        node: str = "n0",
        *,
        of: Sequence[str] = ("n0",),
        seeds: Sequence[str] = (),
        zone: str = "",
        cluster: str = "mq",
        state: State | None = None,
    ) -> None:
        self.state = state or State()
        self.address = f"{broker_set}-{node}:1"
        self.log = _Log([Peer(one, f"{broker_set}-{one}:1", zone) for one in of])
        self.is_current = True
        self.directory = Directory(
            Identity(cluster, broker_set, node),
            self.state,
            self.log,
            seeds,
            next(self.births),
            lambda: self.is_current,
        )

    def topic(self, name: str, queues: int = 4, *, is_readable: bool = True) -> None:
        put = PutTopic(
            topic=name,
            write_queues=queues,
            read_queues=queues,
            is_readable=is_readable,
            is_writable=True,
        )
        self.state.topics.put(put, 0)

    def sets(self, now_ms: int = T0) -> list[str]:
        return [one.name for one in self.directory.sets(now_ms)]

    def greet(self, other: Node, now_ms: int = T0, *, as_set: str | None = None) -> int:
        """As the greeter does; how many topics came."""
        name = other.directory.own_name if as_set is None else as_set
        request = self.directory.greeting(name, other.address)
        response = other.directory.answer(_travelled(request), now_ms)
        version = request.topics_version
        self.directory.heard(name, other.address, _travelled(response), now_ms, version)
        self.directory.greeted(name, [other.address], is_answered=True)
        return len(response.topics)


def _travelled(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def greet_all(nodes: Sequence[Node], now_ms: int = T0) -> None:
    """One round: every broker greets the first that answers, of each set and seed that it knows."""
    by_address = {one.address: one for one in nodes}
    for node in nodes:
        for name, places in list(node.directory.targets()):
            found = next((by_address[one] for one in places if one in by_address), None)
            if found is not None:
                node.greet(found, now_ms, as_set=name)
            else:
                node.directory.greeted(name, places, is_answered=False)


def known(*sets: str) -> list[Node]:
    """One broker of each set; all know all."""
    first, *others = (Node(name) for name in sets)
    nodes = [first, *(Node(one.directory.own_name, seeds=[first.address]) for one in others)]
    for _ in range(3):
        greet_all(nodes)
    assert all(node.sets() == sorted(sets) for node in nodes)
    return nodes
