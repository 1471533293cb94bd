"""A broker set of three in the sandbox: each node in a network namespace of its own.

`HURT` is the node that faults are made for. It alone can have a slow disk or a slow network, which
are put beneath it before it starts; the leadership is moved to it, or from it, before a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from mq.client.aio import Admin
from mq.errors import MqError
from tests.chaos import engine as questions
from tests.chaos.local_engine import ProcessEngine, SteppedProcess
from tests.chaos.workloads import PATIENCE_S
from tests.faults.network import NamespaceNetwork
from tests.faults.sandbox import run

SET = "a"
HURT = "a1"
_CHECK_MS = 30.0
_DISK_BYTES = 1 << 30  # sparse
_PORT, _RAFT_PORT = 8081, 8082
_SLOW_DISK = Path(__file__).with_name("slow_disk.py")
# So small that logs get new segments, and checkpoints are written, during each fault.
_OPTIONS = ("--store-segment-bytes", "256KiB", "--store-checkpoint-log-bytes", "256KiB")


class _Node(SteppedProcess):
    def __init__(self, data: Path, network: NamespaceNetwork, name: str, *flags: str) -> None:
        self._network = network
        self._name = name
        super().__init__(data, *flags, port=_PORT)

    @property
    def host(self) -> str:
        return self._network.address(self._name)

    @property
    def wrapper(self) -> list[str]:
        return self._network.inside(self._name)


class NamespaceEngine(ProcessEngine):
    name = "namespaces"
    network: NamespaceNetwork

    def __init__(
        self,
        directory: Path,
        *flags: str,
        has_slow_disk: bool = False,
        has_slow_network: bool = False,
    ) -> None:
        super().__init__((SET,), {})
        self._directory = directory
        names = self.sets[SET]
        delayed = [HURT] if has_slow_network else []
        self.network = NamespaceNetwork(names, delayed, directory)
        self.slow_disk = SlowDisk(directory / HURT) if has_slow_disk else None
        members = ",".join(f"{name}={self.network.address(name)}:{_RAFT_PORT}" for name in names)
        for name in names:
            self._nodes[name] = _Node(
                directory / name,
                self.network,
                name,
                *("--node-broker-set", SET, "--node-id", name, "--raft-members", members),
                *("--broker-host", self.network.address(name), "--auth-open", "yes"),
                *("--broker-auto-create-topics", "no", "--metrics-enabled", "no"),
                *questions.option_flags(),
                *_OPTIONS,
                *flags,
            )

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.__exit__)
            self.network.up()
            if self.slow_disk is not None:
                self.slow_disk.mount()
            super().__enter__()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.slow_disk is not None:
            self.slow_disk.unmount()
        self.network.down()

    def all_logs(self, node: str) -> str:
        """Of all its runs; `logs` has the last one."""
        return (self._directory / f"{node}.log").read_text()

    def pid(self, node: str) -> int:
        return self._nodes[node].pid

    def is_running(self, node: str) -> bool:
        return self._nodes[node].is_running

    def others(self, node: str) -> list[str]:
        return [other for other in self.sets[SET] if other != node]

    def term(self) -> int:
        answers = questions.statuses(self, self.sets[SET]).values()
        return max(one.term for one in answers if one is not None)

    def lead(self, node: str) -> None:
        """Waits until the node leads."""

        async def transfer() -> None:
            async with Admin(questions.servers_of(self), timeout_s=PATIENCE_S) as admin:
                # Refused while the node is a little behind: asked again.
                with contextlib.suppress(MqError):
                    await admin.transfer_leadership(node, broker_set=SET)

        def leads() -> bool:
            if questions.leader(self, SET) != node:
                asyncio.run(transfer())
            return questions.leader(self, SET) == node

        questions.wait(leads, f"{node} leads")
        questions.wait_well(self, self.sets)


def why_no_slow_disk() -> str:
    """The reason why there can be none here; empty if there can."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    try:
        importlib.import_module("mfusepy")
    except OSError as error:
        return f"no FUSE (Debian: libfuse3-3): {error}"
    if shutil.which("mkfs.ext4") is None:
        return "no mkfs.ext4 (Debian: e2fsprogs)"
    return ""


class SlowDisk:
    """Of one node: its directory is an ext4 file system on the disk of `slow_disk.py`."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self._below = mount.with_name(f"{mount.name}.below")
        self._file = mount.with_name(f"{mount.name}.disk")
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        self._mount.mkdir(parents=True)
        self._below.mkdir()
        image = self._mount.with_name(f"{self._mount.name}.image")
        with image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        run("mkfs.ext4", "-q", "-F", str(image))
        command = (sys.executable, _SLOW_DISK, self._file, image, self._below)
        self._process = subprocess.Popen(command)
        questions.wait(lambda: os.path.ismount(self._below), f"{self._below} is mounted")
        run("mount", "-o", "loop", str(self._below / image.name), str(self._mount))
        self._check()

    def _check(self) -> None:
        """A disk that is not slow when it should be would make every fault of it a success."""
        self.delay(_CHECK_MS)
        probe, began_s = self._mount / "probe", time.monotonic()
        with probe.open("wb") as file:
            os.fsync(file.fileno())
        took_ms = 1000 * (time.monotonic() - began_s)
        assert took_ms >= _CHECK_MS, f"a sync took {took_ms:g} ms"
        probe.unlink()
        self.delay(0)

    def unmount(self) -> None:
        if self._process is not None:
            self.delay(0)
            run("umount", str(self._mount))
            run("umount", "--lazy", str(self._below))
            self._process.kill()
            self._process.wait()

    def delay(self, delay_ms: float) -> None:
        self._file.write_text(str(delay_ms))
