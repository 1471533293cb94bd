"""A broker set of real processes, as its clients see it: `mq server`, three of it, on loopback.

    with BrokerSet(tmp_path) as brokers:
        producer = Producer(brokers.servers)
        killed = brokers.kill_leader()
        brokers.start(killed)

A node keeps its data and its ports over a restart.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import grpc

from mq.wire.v1.admin_pb2 import BrokerStatusRequest, BrokerStatusResponse
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port, poll
from tests.support.topics import call

if TYPE_CHECKING:
    from pathlib import Path


# Machines that are shared stand still for a minute.
_DEADLINE_S = 120.0
_WAITS = "this node does not vote until it has caught up"
_VOTES = "caught up: this node votes again"


class BrokerSet:
    """`nodes` by their names: n0, n1, ..."""

    def __init__(self, directory: Path, *flags: str, count: int = 3) -> None:
        # The API key that questions are asked with.
        self.key = ""
        names = [f"n{at}" for at in range(count)]
        self.directories = [directory / name for name in names]
        self.members = ",".join(f"{name}=127.0.0.1:{free_port()}" for name in names)
        self.nodes = {
            name: BrokerProcess(
                directory / name,
                *("--node-id", name, "--raft-members", self.members, "--metrics-enabled", "no"),
                *flags,
                # Chosen here: what the kernel gives out may be taken when the node comes back.
                port=free_port(),
            )
            for name in names
        }

    @property
    def servers(self) -> str:
        """All of them, for clients."""
        return ",".join(node.address for node in self.nodes.values())

    def address(self, name: str) -> str:
        return self.nodes[name].address

    def others(self, *names: str) -> list[str]:
        return [name for name in self.nodes if name not in names]

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start(*self.nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            if node.is_running:
                node.kill()

    def start(self, *names: str) -> None:
        """At once; returns when each follows a leader or leads, and votes: a new one does not
        before it has all that the others have.
        """
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.nodes[name].start(), names))
        started = [self.nodes[name] for name in names]
        poll(lambda: all(map(_votes, started)), f"{names} vote", _DEADLINE_S)

    def replace_disk(self, name: str) -> None:
        """For a node that does not run: it starts with an empty directory and joins. Returns when
        it has everything, and votes.
        """
        shutil.rmtree(self.directories[list(self.nodes).index(name)])
        self.nodes[name].start("--raft-join", "yes")

        def is_voter() -> bool:
            status = self.status(name)
            return status is not None and status.is_voter and status.is_ready

        poll(is_voter, f"{name} votes", _DEADLINE_S)

    def restart(self, name: str) -> None:
        """Returns when it has the log that the others have."""
        assert self.nodes[name].stop() == 0
        self.start(name)
        self.wait_same()

    def kill_leader(self) -> str:
        """kill -9. Returns the former leader."""
        name = self.leader()
        self.nodes[name].kill()
        return name

    # -- questions --------------------------------------------------------------------------------

    def status(self, name: str) -> BrokerStatusResponse | None:
        """None: it does not answer."""
        request = BrokerStatusRequest()
        try:
            answer = call(
                self.address(name),
                "AdminService/BrokerStatus",
                request,
                BrokerStatusResponse,
                self.key,
            )
        except grpc.RpcError:
            return None
        assert isinstance(answer, BrokerStatusResponse)
        return answer

    def leader(self, *, other_than: str = "") -> str:
        """Waits for one that leads by its own word and by that of all others that run."""

        def found() -> str:
            running = [name for name, node in self.nodes.items() if node.is_running]
            answers = [self.status(name) for name in running]
            said = {one.leader_id if one is not None and one.is_ready else "" for one in answers}
            name = said.pop() if len(said) == 1 else ""
            return name if name in running and name != other_than else ""

        return str(poll(found, "a leader that all agree on", _DEADLINE_S))

    def wait_same(self) -> int:
        """Waits until all have applied the same log; its last index."""

        def same() -> int:
            found = [self.status(name) for name in self.nodes]
            lasts = {one.last_index for one in found if one is not None}
            lasts |= {one.applied_index for one in found if one is not None}
            return lasts.pop() if None not in found and len(lasts) == 1 else 0

        return int(poll(same, "all nodes have the same log", _DEADLINE_S))

    def logs(self) -> str:
        """The ends of all logs, to be shown with a failure."""
        parts = [f"--- {name}\n{node.output()[-3000:]}" for name, node in self.nodes.items()]
        return "\n".join(parts)


def _votes(node: BrokerProcess) -> bool:
    """By its last word on it."""
    said = [line["event"] for line in node.log() if line.get("event") in (_WAITS, _VOTES)]
    return not said or said[-1] == _VOTES
