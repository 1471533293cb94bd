"""The network of a run: a bridge, a namespace for each node, and the clients at the bridge itself.

    clients 10.199.0.254 = bridge ── veth ── node's namespace, 10.199.0.1, ...
                                  └─ delay line ── node's namespace

What a target does not hear of a source is dropped in the namespace of the target, as frames of a
broken cable are: the source is never told. Packets are delayed by `delay_line.py`, since `tc netem`
is a module that many kernels do not have.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.sandbox import run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

CLIENTS = "clients"
_BRIDGE = "br0"
_MASK = 24
_DELAY_LINE = Path(__file__).with_name("delay_line.py")


class NamespaceNetwork:
    """`delayed`: nodes that are reached by a delay line; others by a pair of virtual interfaces."""

    def __init__(self, nodes: Sequence[str], delayed: Collection[str], directory: Path) -> None:
        self._nodes = nodes
        self._delayed = delayed
        self._directory = directory
        # The ends of all that was made, in the order of their making.
        self._ends = contextlib.ExitStack()

    # -- life --------------------------------------------------------------------------------------

    def up(self) -> None:
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        self._ends.callback(run, "ip", "link", "delete", _BRIDGE)
        run("ip", "address", "add", f"{self.address(CLIENTS)}/{_MASK}", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        for node in self._nodes:
            run("ip", "netns", "add", node)
            self._ends.callback(run, "ip", "netns", "delete", node)
            if node in self._delayed:
                self._join_by_delay_line(node)
            else:
                peer = ("peer", "name", "eth0", "netns", node)
                run("ip", "link", "add", f"v-{node}", "type", "veth", *peer)
                # A namespace goes later than its name, and its interfaces with it.
                self._ends.callback(run, "ip", "link", "delete", f"v-{node}")
            run("ip", "link", "set", f"v-{node}", "master", _BRIDGE, "up")
            run("ip", "-n", node, "address", "add", f"{self.address(node)}/{_MASK}", "dev", "eth0")
            run("ip", "-n", node, "link", "set", "eth0", "up")
            run("ip", "-n", node, "link", "set", "lo", "up")

    def down(self) -> None:
        """Also what is half up."""
        self._ends.close()

    def _join_by_delay_line(self, node: str) -> None:
        near, far = f"v-{node}", f"far-{node}"
        command = (sys.executable, str(_DELAY_LINE), near, far, str(self._delay_file(node)))
        line = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._ends.callback(_end, line)
        assert line.stdout is not None
        if line.stdout.readline() != "ready\n":
            raise RuntimeError(f"no delay line for {node}")
        run("ip", "link", "set", far, "netns", node, "name", "eth0")

    def address(self, node: str) -> str:
        return f"10.199.0.{254 if node == CLIENTS else 1 + self._nodes.index(node)}"

    def inside(self, node: str) -> list[str]:
        """What a command begins with that is to run where the node is."""
        return [] if node == CLIENTS else ["nsenter", f"--net=/run/netns/{node}"]

    # -- faults ------------------------------------------------------------------------------------

    def isolate(self, node: str) -> None:
        self.mute(node)
        self.deafen(node)

    def rejoin(self, node: str) -> None:
        """Mends everything: there is one fault at a time."""
        del node
        self.mend()

    def cut(self, source: str, target: str) -> None:
        self._drop(source, target)

    def mute(self, node: str, *, only: Iterable[str] = ()) -> None:
        """It is not heard by any other, or by none of `only`."""
        for other in only or self._others(node):
            self.cut(node, other)

    def deafen(self, node: str, *, only: Iterable[str] = ()) -> None:
        """It hears no other, or none of `only`."""
        for other in only or self._others(node):
            self.cut(other, node)

    def lose(self, node: str, share: float) -> None:
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        for other in self._others(node):
            self._drop(other, node, *chance)
            self._drop(node, other, *chance)

    def delay(self, node: str, delay_ms: float) -> None:
        """Each way; the node must be one of `delayed`."""
        assert node in self._delayed
        self._delay_file(node).write_text(str(delay_ms))

    def mend(self) -> None:
        for node in (*self._nodes, CLIENTS):
            run(*self.inside(node), "iptables", "-w", "-F", "INPUT")
        for node in self._delayed:
            self.delay(node, 0.0)

    def _drop(self, source: str, target: str, *which: str) -> None:
        rule = ("-A", "INPUT", "-s", self.address(source), *which, "-j", "DROP")
        run(*self.inside(target), "iptables", "-w", *rule)

    def _others(self, node: str) -> list[str]:
        return [other for other in itertools.chain(self._nodes, [CLIENTS]) if other != node]

    def _delay_file(self, node: str) -> Path:
        return self._directory / f"{node}.delay"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
