"""Small calls: one message a call, from a Go client, on our own transport and on grpcio.

    unary          Sends of 128 B from 64 callers, both transports in turns; flush: synchronous
                   against asynchronous; quorum: three nodes against one; tls: with TLS against
                   without
    stream         one message a request, on 8 Publish streams with 4 in flight each
    up, down       large batches in, a backlog out, on both transports
    transactions   half message and commit, 64 at a time
    receive        one message received and acknowledged, 64 consumers
    single         one caller alone; e2e: a message sent and awaited by a long poll
    connections    memory with 10,000 idle connections

Figures are of the broker's rate beside the other one in the same run: machines are shared and
noisy. CPU of broker and generator is printed, so that a generator which is the limit shows.
`--json` prints one object. Needs Go, which builds the generator (bench/load) once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from bench.broker import Figures, create_topic, generate, progress, run_parts, show
from bench.broker_set import BrokerSet, single
from tests.support.certificates import Authority

GOALS = {
    "unary_vs_grpcio": (10.0, "at least"),
    "unary_sync_vs_async": (0.6, "at least"),
    "unary3_vs_unary1": (0.3, "at least"),
    "stream1_vs_grpcio": (5.0, "at least"),
    "up_vs_grpcio": (1.0, "at least"),
    "down_vs_grpcio": (1.0, "at least"),
    "tls_vs_plain": (0.0, "printed"),
    "transactions_vs_unary": (0.4, "at least"),
    "receive_ack_vs_unary": (0.4, "at least"),
    "single_caller_p50_ms": (0.0, "printed"),
    "e2e_p50_ms": (0.0, "printed"),
    "connections_10k_rss_mb": (0.0, "printed"),
}
_OURS, _GRPCIO = ("--broker-transport", "mq"), ("--broker-transport", "grpcio")
_IDLE = 10_000
_BACKLOG_BYTES = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--only", help="comma-separated parts: unary, stream, up, ...")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-") as directory:
        figures = Bench(Path(directory), arguments).run()
    print(json.dumps(figures)) if arguments.json else show(figures, GOALS)


def build(target: Path) -> Path:
    """The generator."""
    go = shutil.which("go")
    if go is None:
        sys.exit("the load generator is a Go program: install Go 1.24 or later, see https://go.dev")
    source = Path(__file__).parent / "load"
    command = [go, "build", "-o", str(target), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the load generator cannot be built:\n{done.stderr}")
    return target


class Bench:
    def __init__(self, directory: Path, arguments: Any) -> None:
        self._directory = directory
        self._rounds: int = arguments.rounds
        self._seconds: float = arguments.seconds
        self._only = set(arguments.only.split(",")) if arguments.only else set()
        self._load = build(directory / "load")
        self._figures: Figures = {}
        self._count = 0
        # Of brokers with TLS, by address.
        self._authorities: dict[str, str] = {}

    def run(self) -> Figures:
        parts = [
            ("unary", self.unary),
            ("flush", self.flush),
            ("quorum", self.quorum),
            ("tls", self.tls),
            ("stream", self.stream),
            ("up", self.up_and_down),
            ("transactions", self.transactions),
            ("receive", self.receive),
            ("single", self.single_caller),
            ("connections", self.connections),
        ]
        run_parts(parts, self._only)
        return self._figures

    # -- parts ------------------------------------------------------------------------------------

    def unary(self) -> None:
        with self._broker(*_OURS) as ours, self._broker(*_GRPCIO) as theirs:
            self._compare("unary_vs_grpcio", "unary", ours, theirs)

    def flush(self) -> None:
        with self._broker(*_OURS, flush="sync") as ours, self._broker(*_OURS) as theirs:
            self._compare("unary_sync_vs_async", "unary", ours, theirs)

    def quorum(self) -> None:
        three = BrokerSet(self._next(), 3, "async", *_OURS)
        with three, self._broker(*_OURS) as one:
            self._compare("unary3_vs_unary1", "unary", three, one)

    def tls(self) -> None:
        files = Authority(self._next()).files()
        flags = {"--broker-tls": "required", **files.flags("broker")}
        encrypted = self._broker(*_OURS, *itertools.chain.from_iterable(flags.items()))
        with encrypted as ours, self._broker(*_OURS) as theirs:
            self._authorities[ours.address] = files.ca
            self._compare("tls_vs_plain", "unary", ours, theirs)

    def stream(self) -> None:
        with self._broker(*_OURS) as ours, self._broker(*_GRPCIO) as theirs:
            self._compare("stream1_vs_grpcio", "stream", ours, theirs, callers=8, in_flight=4)

    def transactions(self) -> None:
        with self._broker(*_OURS) as broker:
            self._compare("transactions_vs_unary", "transactions", broker, broker)

    def receive(self) -> None:
        with self._broker(*_OURS) as broker:
            create_topic(broker.address, "bench", 8)
            flags = {"size": 128, "batch": 1000, "seconds": 60, "bytes_max": 200_000_000}
            generate("produce", broker.address, **flags)
            self._compare("receive_ack_vs_unary", "receive", broker, broker)

    def up_and_down(self) -> None:
        up = {"size": 1024, "batch": 512, "seconds": self._seconds}
        down = {"size": 1024, "batch": 1000, "seconds": self._seconds}
        with self._broker(*_OURS) as ours, self._broker(*_GRPCIO) as theirs:
            rates: dict[str, list[float]] = {}
            for broker in (ours, theirs):
                create_topic(broker.address, "bench", 8)
                generate(
                    "produce", broker.address, **up | {"seconds": 60}, bytes_max=_BACKLOG_BYTES
                )
            for at in range(self._rounds):
                for name, broker in (("ours", ours), ("theirs", theirs)):
                    limits = {"bytes_max": _BACKLOG_BYTES * 9 // 10, "group": f"bench-{at}"}
                    figures = generate("consume", broker.address, **down, **limits)
                    rates.setdefault(f"down {name}", []).append(figures["mb_per_s"])
                    figures = generate("produce", broker.address, **up)
                    rates.setdefault(f"up {name}", []).append(figures["mb_per_s"])
        for way in ("up", "down"):
            mine, other = (statistics.median(rates[f"{way} {one}"]) for one in ("ours", "theirs"))
            self._figures[f"{way}_mb_per_s"] = mine
            self._figures[f"{way}_vs_grpcio"] = mine / other

    def single_caller(self) -> None:
        with self._broker(*_OURS) as ours, self._broker(*_GRPCIO) as theirs:
            for name, broker in (("", ours), ("_grpcio", theirs)):
                create_topic(broker.address, "bench", 1)
                alone = [self._run("unary", broker, callers=1) for _ in range(self._rounds)]
                flags = {"size": 128, "seconds": self._seconds}
                ends = [generate("e2e", broker.address, **flags) for _ in range(self._rounds)]
                for figure, found in (("single_caller", alone), ("e2e", ends)):
                    self._figures[f"{figure}{name}_p50_ms"] = _median(found, "p50_ms")

    def connections(self) -> None:
        with self._broker(*_OURS) as broker:
            before = broker.rss_mb()
            with _idle(broker.address, _IDLE) as count:
                self._figures["connections_made"] = count
                self._figures["connections_0_rss_mb"] = before
                self._figures["connections_10k_rss_mb"] = broker.rss_mb()

    # -- pieces -----------------------------------------------------------------------------------

    def _broker(self, *flags: str, flush: str = "async") -> BrokerSet:
        return single(self._next(), flush, *flags)

    def _next(self) -> Path:
        self._count += 1
        return self._directory / f"broker-{self._count}"

    def _compare(
        self, name: str, mode: str, ours: BrokerSet, theirs: BrokerSet, **flags: int
    ) -> None:
        """The rate of this mode against the same of another broker; on the same broker, against
        unary sends.
        """
        other_mode = "unary" if ours is theirs else mode
        for broker in {ours.address: ours, theirs.address: theirs}.values():
            with contextlib.suppress(grpc.RpcError):  # it exists
                create_topic(broker.address, "bench", 8, self._authorities.get(broker.address))
        mine, other = [], []
        for _ in range(self._rounds):
            other.append(self._run(other_mode, theirs, **flags))
            mine.append(self._run(mode, ours, **flags))
            progress.print(f"{name}: {_said(mine[-1])} against {_said(other[-1])}")
        rate, other_rate = _median(mine, "per_s"), _median(other, "per_s")
        key = name.partition("_vs_")[0]
        self._figures[f"{key}_per_s"] = rate
        self._figures[f"{key}_cpu_us"] = _median(mine, "cpu_us")
        self._figures[f"{key}_p99_ms"] = _median(mine, "p99_ms")
        self._figures[name] = rate / other_rate
        if ours is not theirs:
            # The other one's CPU for the same call: a rate also says how many cores a broker uses.
            self._figures[f"{name}_by_cpu"] = _median(other, "cpu_us") / _median(mine, "cpu_us")

    def _run(self, mode: str, broker: BrokerSet, **flags: int) -> Figures:
        command = [str(self._load), "-mode", mode, "-address", broker.address]
        command += ["-seconds", str(self._seconds)]
        command += ["-ca", self._authorities.get(broker.address, "")]
        for name, value in flags.items():
            command += [f"-{name.replace('_', '-')}", str(value)]
        cpu_s = broker.cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"the load generator failed:\n{done.stderr[-2000:]}")
        figures: Figures = json.loads(done.stdout)
        figures["per_s"] = figures["calls"] / figures["seconds"]
        figures["cpu_us"] = (broker.cpu_s() - cpu_s) / max(1, figures["calls"]) * 1e6
        return figures


def _median(rounds: list[Figures], figure: str) -> float:
    return statistics.median(one[figure] for one in rounds)


def _said(figures: Figures) -> str:
    generator_us = figures["generator_cpu_s"] / max(1, figures["calls"]) * 1e6
    return (
        f"{figures['per_s']:,.0f}/s ({figures['cpu_us']:.0f} µs, generator {generator_us:.0f} µs, "
        f"p99 {figures['p99_ms']:.1f} ms)"
    )


@contextlib.contextmanager
def _idle(address: str, count: int) -> Iterator[int]:
    """So many connections that said hello, or as many as the limits on descriptors allow."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = address.rpartition(":")
    # The preface, an empty SETTINGS, and the acknowledgement of the server's.
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
    hello += bytes(3) + b"\4\1" + bytes(4)
    made = 0
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            for _ in range(count):
                one = stack.enter_context(socket.create_connection((host, int(port))))
                one.sendall(hello)
                if not one.recv(1):
                    break  # refused; else the server has greeted it
                made += 1
        yield made


if __name__ == "__main__":
    main()
