"""Pods without Kubernetes: processes in network namespaces on one bridge, and a DNS server that
gives them names. A test does to a pod what its cluster would: a name that appears late, another
address after a restart, SIGTERM, a volume that comes back elsewhere.

    with PodNetwork() as network:
        pod = network.pod("mq-a-0")
        pod.start(["-m", "mq", "server"], environment)
        network.publish(pod)                    # now its name resolves
        assert pod.get("/readyz") == 200
        pod.terminate(30.0)
        pod.move()                              # the same name, another address

Needs root and `ip` of iproute2. Namespaces are named for this process, so that several can test.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DOMAIN = "mq-brokers.shop.svc.cluster.local"
_CLONE_NEWNET = 0x4000_0000
_HUB_ADDRESS, _HUB_MAC = "10.214.0.1", "02:00:0a:d6:00:01"
_COMMAND_S = 60.0
_PROBE_S = 30.0
_TTL_S = 5
_A, _IN, _NXDOMAIN = 1, 1, 3
_METRICS_PORT = 5557


def why_not() -> str:
    """The reason why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root alone"
    if shutil.which("ip") is None:
        return "there is no ip command: it comes with iproute2"
    name = f"mq-{os.getpid()}-try"
    done = _ip("netns", "add", name)
    if done.returncode != 0:
        return f"no network namespace can be made: {done.stderr.strip()}"
    _ip("netns", "delete", name)
    return ""


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("ip") or "ip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)


def _must(*arguments: str) -> None:
    done = _ip(*arguments)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class PodNetwork:
    def __init__(self) -> None:
        self._prefix = f"mq-{os.getpid()}"
        self.hub = f"{self._prefix}-hub"
        self._addresses = 1
        # Of the DNS server: False leaves questions without an answer.
        self.answers = True
        self._pods: list[Pod] = []
        self.names: dict[str, str] = {}
        # By the address that asked, and the name.
        self.questions: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        try:
            _must("netns", "add", self.hub)
            # Without an address of its own a bridge takes the lowest of its ports: a pod that left
            # would change it, and the others would send to the old one for up to a minute.
            bridge = ("link", "add", "bridge", "address", _HUB_MAC, "type", "bridge")
            _must("-netns", self.hub, *bridge)
            _must("-netns", self.hub, "address", "add", f"{_HUB_ADDRESS}/16", "dev", "bridge")
            _must("-netns", self.hub, "link", "set", "bridge", "up")
            self._dns = _Dns(self)
        except BaseException:
            _ip("netns", "delete", self.hub)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self._pods:
            pod.kill()
            pod.leave()
        self._dns.close()
        _ip("netns", "delete", self.hub)

    def pod(self, name: str) -> Pod:
        """A new one, which has an address and no name."""
        pod = Pod(self, name, f"{self._prefix}-{name}")
        self._pods.append(pod)
        pod.move()
        return pod

    def publish(self, *pods: Pod) -> None:
        """Their names resolve to the addresses that they have now."""
        self.names.update({pod.host: pod.address for pod in pods})

    def withdraw(self, *pods: Pod) -> None:
        """Their names do not exist any more, as of pods that are nowhere."""
        for pod in pods:
            del self.names[pod.host]

    def hub_mac(self) -> str:
        """Where pods send what is for the DNS server."""
        done = _ip("-netns", self.hub, "-json", "link", "show", "bridge")
        return str(json.loads(done.stdout)[0]["address"])

    def next_address(self) -> str:
        self._addresses += 1
        return f"10.214.{self._addresses // 250}.{self._addresses % 250 + 1}"


class Pod:
    """A process with an address of its own, and what it writes."""

    def __init__(self, network: PodNetwork, name: str, namespace: str) -> None:
        self.name = name
        self.address = ""
        self._network = network
        self._namespace = namespace
        self._process: subprocess.Popen[str] | None = None

    @property
    def host(self) -> str:
        """Its name in the DNS."""
        return f"{self.name}.{DOMAIN}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def move(self) -> None:
        """To another node: nothing of its network stays."""
        self.leave()
        self.address = self._network.next_address()
        _must("netns", "add", self._namespace)
        plug = f"v{self._network.next_address().replace('.', '')[5:]}"
        ends = ("link", "add", plug, "type", "veth", "peer", "name", "eth0")
        _must("-netns", self._network.hub, *ends, "netns", self._namespace)
        _must("-netns", self._network.hub, "link", "set", plug, "master", "bridge", "up")
        for arguments in (
            ("address", "add", f"{self.address}/16", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _must("-netns", self._namespace, *arguments)
        # `ip netns exec` puts what lies here over the files of /etc.
        etc = Path("/etc/netns") / self._namespace
        etc.mkdir(parents=True)
        search = "search shop.svc.cluster.local svc.cluster.local cluster.local"
        (etc / "resolv.conf").write_text(f"nameserver {_HUB_ADDRESS}\n{search}\noptions ndots:5\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")

    def leave(self) -> None:
        assert not self.is_running
        _ip("netns", "delete", self._namespace)
        shutil.rmtree(Path("/etc/netns") / self._namespace, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        output: IO[str] | None = None,
    ) -> subprocess.Popen[str]:
        """A program in Python. `ip` becomes it: signals reach it. Without an `output` there are
        pipes to talk to it.
        """
        assert not self.is_running
        self._process = subprocess.Popen(
            self.inside(*arguments),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL if output else subprocess.PIPE,
            stdout=output or subprocess.PIPE,
            stderr=output,
            text=True,
        )
        return self._process

    def inside(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self._namespace, sys.executable, *arguments]

    def terminate(self, grace_s: float) -> int | None:
        """SIGTERM; the exit code, or None if it did not end by itself in time, and was killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_COMMAND_S)

    def get(self, path: str) -> int:
        """The status of a probe; 0: nothing answers."""
        with _socket_in(self._network.hub, socket.SOCK_STREAM) as sock:
            sock.settimeout(_PROBE_S)
            connection = http.client.HTTPConnection(self.address, _METRICS_PORT)
            connection.sock = sock
            try:
                sock.connect((self.address, _METRICS_PORT))
                connection.request("GET", path)
                return connection.getresponse().status
            except OSError:
                return 0


@contextlib.contextmanager
def _socket_in(namespace: str, kind: socket.SocketKind) -> Iterator[socket.socket]:
    """A socket of that namespace: it belongs to where it was made, whatever thread uses it."""
    made: list[socket.socket] = []

    def make() -> None:
        with Path(f"/var/run/netns/{namespace}").open("rb") as there:
            # Of this thread alone, which ends here.
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _CLONE_NEWNET) == 0:
                made.append(socket.socket(socket.AF_INET, kind))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert made, f"cannot enter the namespace {namespace}"
    with made[0]:
        yield made[0]


class _Dns:
    """Answers for the names that it has; others do not exist."""

    def __init__(self, network: PodNetwork) -> None:
        self._network = network
        self._stack = contextlib.ExitStack()
        self._socket = self._stack.enter_context(_socket_in(network.hub, socket.SOCK_DGRAM))
        self._socket.bind((_HUB_ADDRESS, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing alone would not wake it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_COMMAND_S)
        self._stack.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                query, sender = self._socket.recvfrom(1_500)
                if not query:
                    return
                if self._network.answers:
                    self._socket.sendto(self._answer(query, sender[0]), sender)

    def _answer(self, query: bytes, sender: str) -> bytes:
        """RFC 1035: a head of 12 bytes, the question, and at most one address."""
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12 : at + 5]
        (kind,) = struct.unpack_from(">H", query, at + 1)
        name = ".".join(labels).lower()
        self._network.questions[sender, name] += kind == _A
        address = self._network.names.get(name)
        has_answer = address is not None and kind == _A
        code = 0 if address is not None else _NXDOMAIN
        head = query[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, int(has_answer), 0, 0)
        if not has_answer or address is None:
            return head + question
        record = struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(address)
        return head + question + record
