"""A broker set of real processes on disks that lose power, as an engine of a chaos run.

Each node has a disk of its own (`disks`). A cut stops its process, cuts the disk and ends the
process. The order makes the check exact: all that clients and other nodes ever hear of a node was
said before its disk was cut. A stopped thread may finish the system call that it is in, such as the
sending of an answer, but an answer follows a sync that had returned before. A sync that is under
way may be cut at any of its writes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from tests.chaos import engine as questions
from tests.cluster.judgement import SMALL, verify
from tests.power_loss.disks import Disk
from tests.support.broker_set import BrokerSet
from tests.support.log_compare import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.power_loss.disks import Cut

_SET = "a"


class PoweredSet:
    """`count` nodes; `flush` as in the configuration of a broker."""

    name = "power-loss"
    network: questions.Network | None = None
    disk: questions.SmallDisk | None = None
    access = questions.Access()
    unable: Mapping[str, str] = {
        "clock": "brokers with the clock of this machine start faster",
        "rot": "disks lose power, and nothing else",
    }

    def __init__(self, directory: Path, count: int, flush: str) -> None:
        self.brokers = BrokerSet(directory, *_flags(flush), count=count)
        self.sets: Mapping[str, Sequence[str]] = {_SET: list(self.brokers.nodes)}
        self._disks = {name: Disk(directory / name) for name in self.brokers.nodes}

    def __enter__(self) -> Self:
        try:
            self._each(self._disks, lambda name: self._disks[name].make())
            self.start(*self._disks)
            questions.wait_well(self, self.sets)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.brokers.__exit__()
        for disk in self._disks.values():
            disk.remove()

    # -- power -------------------------------------------------------------------------------------

    def cut(self, way: Cut, *nodes: str) -> None:
        """These lose power at the same time."""
        for node in nodes:
            self.freeze(node)
        self._each(nodes, lambda node: self._disks[node].cut(way))
        self.kill(*nodes)

    def restore(self, *nodes: str, others: Sequence[str] = ()) -> None:
        """The power of these is back; they start, and with them others that were away. Returns when
        all are up: one that refuses its disk is an error at once.
        """
        self._each(nodes, lambda node: self._disks[node].restore())
        self._each([*nodes, *others], lambda node: self.brokers.nodes[node].start())

    def wait_caught_up(self, node: str) -> None:
        """Until it votes and has all that its leader has now."""
        leader = questions.leader(self, _SET)
        now = self.brokers.status(leader)
        assert now is not None, f"{leader} does not answer"

        def is_caught_up() -> bool:
            status = self.brokers.status(node)
            return status is not None and status.is_voter and status.applied_index >= now.last_index

        questions.wait(is_caught_up, f"{node} has caught up with {leader}")

    def differences(self) -> list[str]:
        """Stops all nodes. What of their disks is not whole, or not the same everywhere."""
        commit_index = self.brokers.wait_same()
        for node in self.brokers.nodes:
            self.stop(node)
        for directory in self.brokers.directories:
            # Queues and key index, too.
            verify(directory)
        return compare(self.brokers.directories, commit_index, derived=False)

    @staticmethod
    def _each(nodes: Iterable[str], work: Callable[[str], object]) -> None:
        """At the same time."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(work, nodes))

    # -- as other engines --------------------------------------------------------------------------

    def address(self, node: str) -> str:
        return self.brokers.address(node)

    def kill(self, *nodes: str) -> None:
        for node in nodes:
            # A page of a disk that is gone may have ended it already (SIGBUS).
            with contextlib.suppress(ProcessLookupError):
                self.brokers.nodes[node].kill()

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.brokers.nodes[node].launch()

    def stop(self, node: str) -> None:
        code = self.brokers.nodes[node].stop()
        if code != 0:
            raise AssertionError(f"{node} ended with {code} after SIGTERM")

    def freeze(self, node: str) -> None:
        os.kill(self.brokers.nodes[node].pid, signal.SIGSTOP)

    def thaw(self, node: str) -> None:
        os.kill(self.brokers.nodes[node].pid, signal.SIGCONT)

    def at_disk(self, node: str, verb: str, argument: object = None) -> Any:
        raise NotImplementedError(self.unable["rot"])

    def step_clock(self, node: str, step_ms: int) -> None:
        raise NotImplementedError(self.unable["clock"])

    def logs(self, node: str) -> str:
        return self.brokers.nodes[node].output()


def _flags(flush: str) -> list[str]:
    """Small files: a cut also falls into the making of segments and checkpoints."""
    own = {
        "--node-broker-set": _SET,
        "--broker-auto-create-topics": "no",
        "--store-flush": flush,
        # A start checks all of the log.
        "--store-verify-bytes": "2GiB",
    }
    small = [part for option in {**SMALL, **own}.items() for part in option]
    return [*questions.option_flags(), *small]
