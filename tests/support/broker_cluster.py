"""Several broker sets of real processes that know of each other: a cluster.

    with BrokerCluster(tmp_path, "a", "b") as cluster:
        producer = Producer(cluster.servers)
        cluster.sets["b"].kill_leader()

The first set is told of no other, the others of the first: greetings do the rest.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll
from tests.support.topics import call

if TYPE_CHECKING:
    from pathlib import Path

_DEADLINE_S = 120.0


class BrokerCluster:
    def __init__(
        self, directory: Path, *names: str, flags: tuple[str, ...] = (), count: int = 1
    ) -> None:
        """`count` nodes a set."""
        self.sets: dict[str, BrokerSet] = {}
        for name in names:
            (directory / name).mkdir(parents=True, exist_ok=True)
            seeds = next(iter(self.sets.values())).servers if self.sets else ""
            self.sets[name] = BrokerSet(
                directory / name,
                *("--node-broker-set", name, "--broker-seeds", seeds),
                *flags,
                count=count,
            )

    @property
    def servers(self) -> str:
        """All of them, for clients."""
        return ",".join(one.servers for one in self.sets.values())

    @property
    def nodes(self) -> list[str]:
        """Addresses."""
        return self.servers.split(",")

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda one: one.start(*one.nodes), self.sets.values()))
            self.wait_known()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.sets.values():
            one.__exit__()

    def wait_known(self, *topics: str, sets: int = 0) -> None:
        """Waits until every broker that runs knows every set, and these topics in so many of them,
        or in all.
        """
        parts = len(topics) * (sets or len(self.sets))
        running = [n for one in self.sets.values() for n in one.nodes.values() if n.is_running]

        def known(address: str) -> bool:
            request = RouteRequest(topics=topics)
            answer = call(address, "ClusterService/Route", request, RouteResponse)
            assert isinstance(answer, RouteResponse)
            found = {one.name for one in answer.broker_sets if one.leader_id}
            return found == set(self.sets) and len(answer.topics) == parts

        poll(lambda: all(known(node.address) for node in running), "all know all", _DEADLINE_S)
