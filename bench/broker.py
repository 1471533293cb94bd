"""A broker of one node, asynchronous flush, against a bare gRPC server on the same work: ratios,
because machines are shared and noisy.

    produce    batches of 128 B and 1 KiB messages over one Publish stream, encoded beforehand;
               and our own client, encoding included, which is limited by Python itself
    consume    a backlog over one Subscribe stream, against a server that streams the same bytes
    queues     10,240 queues against 8;  backlog: 5 GB in the log against an empty one
    e2e        one message at a time, sent and awaited by a long poll, against a bare unary call
    quorum     three nodes, each message on a majority of them, against one node
    security   callers that are known by a key and allowed by policies, against open ones; TLS
               against plaintext: messages/s, and CPU of the broker for the same bytes in small
               batches, which has less noise
    rss        of an idle broker; with 1,000 producers and 1,000 consumers connected; after load

Ours and the baseline take turns; a ratio is of the medians over the rounds. The load comes from a
process of its own, whose CPU is printed beside the broker's. `--json` prints one object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from bench.broker_set import BrokerSet, single
from bench.connections import connect_many
from bench.known_callers import KnownCallers
from mq.wire.v1 import admin_pb2
from tests.support.certificates import Authority

GOALS = {
    "produce_vs_ceiling_128": (0.6, "at least"),
    "produce_vs_ceiling_1k": (0.6, "at least"),
    "consume_vs_ceiling": (0.6, "at least"),
    "queues_10240_vs_8": (0.8, "at least"),
    "backlog_vs_empty": (0.9, "at least"),
    "e2e_vs_roundtrip_p50": (3.0, "at most"),
    "quorum3_vs_single": (0.0, "printed"),
    "produce_auth_vs_open_cpu": (1.02, "at most"),
    "consume_auth_vs_open_cpu": (1.02, "at most"),
    "produce_auth_vs_open": (0.0, "printed"),
    "consume_auth_vs_open": (0.0, "printed"),
    "produce_tls_vs_plain_cpu": (0.0, "printed"),
    "consume_tls_vs_plain_cpu": (0.0, "printed"),
    "produce_tls_vs_plain": (0.0, "printed"),
    "consume_tls_vs_plain": (0.0, "printed"),
    "rss_idle_mb": (150.0, "below"),
}
# About half a megabyte a request: few, large requests.
BATCHES = {128: 4000, 1024: 512}
_DATA_BYTES_MAX = 2 << 30
_BACKLOG_BYTES = 256 << 20
# Of a measurement of CPU, and how many pairs of them there are.
_CPU_BYTES = {"produce": 32 << 20, "consume": _BACKLOG_BYTES}
_CPU_PAIRS = 9
progress = Console(stderr=True)

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--only", help="comma-separated parts: produce, consume, queues, ...")
    parser.add_argument(
        "--directory", help="where to write (default: the system's temporary directory)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.directory) as directory:
        figures = Bench(Path(directory), arguments).run()
    print(json.dumps(figures)) if arguments.json else show(figures)


def run_parts(parts: Sequence[tuple[str, Callable[[], None]]], only: Collection[str]) -> None:
    """Those with these names, or all; says how long each took."""
    for name, part in parts:
        if not only or name in only:
            began = time.perf_counter()
            part()
            progress.print(f"{name}: {time.perf_counter() - began:.0f} s")


def generate(what: str, address: str, **flags: Any) -> Figures:
    """Runs the load generator; its figures."""
    return run_program("bench.generator", what, address, flags)


def run_program(program: str, what: str, address: str, flags: Mapping[str, Any]) -> Figures:
    command = [sys.executable, "-m", program, what, "--address", address]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the load generator failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


@contextmanager
def ceiling() -> Iterator[str]:
    """The address of a bare server."""
    command = [sys.executable, "-m", "bench.ceiling"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def create_topic(address: str, topic: str, queues: int, ca: str | None = None) -> None:
    """`ca` is the authority of a broker with TLS."""
    request = admin_pb2.CreateTopicRequest(topic=topic, queues=queues)
    if ca is None:
        opened = grpc.insecure_channel(address)
    else:
        opened = grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(ca).read_bytes()))
    with opened as channel:
        channel.unary_unary("/mq.v1.AdminService/CreateTopic")(
            request.SerializeToString(), timeout=30
        )


class Bench:
    def __init__(self, directory: Path, arguments: Any) -> None:
        self._directory = directory
        self._rounds: int = arguments.rounds
        self._seconds: float = arguments.seconds
        self._only = set(arguments.only.split(",")) if arguments.only else set()
        self._figures: Figures = {}
        self._count = 0

    def run(self) -> Figures:
        parts = [
            ("produce", self.produce),
            ("consume", self.consume),
            ("queues", self.queues),
            ("backlog", self.backlog),
            ("e2e", self.e2e),
            ("quorum", self.quorum),
            ("security", self.security),
            ("rss", self.rss),
        ]
        run_parts(parts, self._only)
        return self._figures

    # -- parts ------------------------------------------------------------------------------------

    def produce(self) -> None:
        for size, name in ((128, "128"), (1024, "1k")):
            flags = {"size": size, "batch": BATCHES[size], "seconds": self._seconds}
            with ceiling() as bare, self._broker() as broker:
                create_topic(broker.address, "bench", 8)
                ours, theirs = [], []
                cpu_s = broker.cpu_s()
                for _ in range(self._rounds):
                    theirs.append(generate("produce", bare, service="ceiling", **flags))
                    ours.append(generate("produce", broker.address, **flags))
                    self._say(f"produce {size} B", ours[-1], theirs[-1])
                self._keep(f"produce_{name}", ours)
                self._keep(f"ceiling_produce_{name}", theirs)
                self._figures[f"produce_{name}_broker_cpu_s"] = broker.cpu_s() - cpu_s
                self._figures[f"produce_{name}_generator_cpu_s"] = sum(
                    one["generator_cpu_s"] for one in ours
                )
                self._ratio(f"produce_vs_ceiling_{name}", ours, theirs)
                self._client(broker, size, name)

    def _client(self, broker: BrokerSet, size: int, name: str) -> None:
        """Our own client, in one process: what encoding costs."""
        flags = {"size": size, "seconds": self._seconds}
        figures = generate("client", broker.address, **flags)
        self._keep(f"client_produce_{name}", [figures])

    def consume(self) -> None:
        flags = {"size": 1024, "batch": 1000, "seconds": self._seconds}
        with ceiling() as bare, self._broker() as broker:
            create_topic(broker.address, "bench", 8)
            self._fill(broker, _DATA_BYTES_MAX)
            ours, theirs = [], []
            for at in range(self._rounds):
                theirs.append(generate("consume", bare, service="ceiling", **flags))
                limits = {"bytes_max": _DATA_BYTES_MAX * 9 // 10, "group": f"bench-{at}"}
                ours.append(generate("consume", broker.address, **flags, **limits))
                self._say("consume", ours[-1], theirs[-1])
        self._keep("consume", ours)
        self._keep("ceiling_consume", theirs)
        self._ratio("consume_vs_ceiling", ours, theirs)

    def queues(self) -> None:
        flags = {"size": 128, "batch": 1000, "seconds": self._seconds}
        with self._broker() as broker:
            create_topic(broker.address, "few", 8)
            create_topic(broker.address, "many", 10_240)
            many_flags = {**flags, "topic": "many", "queues": 10_240}
            # All of them exist before the clock starts.
            generate("produce", broker.address, **many_flags)
            few, many = [], []
            for _ in range(self._rounds):
                few.append(generate("produce", broker.address, **flags, topic="few"))
                many.append(generate("produce", broker.address, **many_flags))
                self._say("10,240 queues", many[-1], few[-1])
        self._keep("queues_8", few)
        self._keep("queues_10240", many)
        self._ratio("queues_10240_vs_8", many, few)

    def backlog(self) -> None:
        flags = {"size": 1024, "batch": BATCHES[1024], "seconds": self._seconds}
        with self._broker() as empty, self._broker() as full:
            for broker in (empty, full):
                create_topic(broker.address, "bench", 8)
            self._fill(full, 5_000_000_000)
            ours, theirs = [], []
            for _ in range(self._rounds):
                theirs.append(generate("produce", empty.address, **flags))
                ours.append(generate("produce", full.address, **flags))
                self._say("5 GB backlog", ours[-1], theirs[-1])
        self._keep("backlog_empty", theirs)
        self._keep("backlog_5gb", ours)
        self._ratio("backlog_vs_empty", ours, theirs)

    def e2e(self) -> None:
        with ceiling() as bare, self._broker(flush="sync") as broker:
            create_topic(broker.address, "bench", 1)
            ours, theirs = [], []
            for _ in range(self._rounds):
                theirs.append(generate("roundtrip", bare, seconds=self._seconds))
                ours.append(generate("e2e", broker.address, size=128, seconds=self._seconds))
        for name, rounds in (("e2e", ours), ("roundtrip", theirs)):
            for figure in ("p50_ms", "p99_ms"):
                self._figures[f"{name}_{figure}"] = statistics.median(one[figure] for one in rounds)
        # One message at a time: its rate follows from its time.
        self._figures["e2e_messages_per_s"] = 1000 / self._figures["e2e_p50_ms"]
        self._figures["e2e_mb_per_s"] = 128 / self._figures["e2e_p50_ms"] / 1000
        self._figures["e2e_vs_roundtrip_p50"] = (
            self._figures["e2e_p50_ms"] / self._figures["roundtrip_p50_ms"]
        )

    def quorum(self) -> None:
        flags = {"size": 1024, "batch": BATCHES[1024], "seconds": self._seconds}
        with self._broker() as one, BrokerSet(self._next(), 3, "async") as three:
            for broker in (one, three):
                create_topic(broker.address, "bench", 8)
            ours, theirs = [], []
            for _ in range(self._rounds):
                theirs.append(generate("produce", one.address, **flags))
                ours.append(generate("produce", three.address, **flags))
                self._say("three nodes, quorum", ours[-1], theirs[-1])
        self._keep("quorum3", ours)
        self._keep("quorum_single", theirs)
        self._ratio("quorum3_vs_single", ours, theirs)

    def security(self) -> None:
        known = KnownCallers(self._next())
        files = Authority(self._next()).files()
        tls = {"--broker-tls": "required", **files.flags("broker")}
        with (
            self._broker() as plain,
            single(self._next(), "async", *known.flags) as closed,
            single(self._next(), "async", *itertools.chain(*tls.items())) as encrypted,
        ):
            create_topic(plain.address, "bench", 8)
            create_topic(encrypted.address, "bench", 8, files.ca)
            known.prepare(closed.address, "bench", 8)
            self._beside("auth_vs_open", closed, plain, key_file=known.key_file)
            self._beside("tls_vs_plain", encrypted, plain, ca=files.ca)

    def _beside(self, name: str, ours: BrokerSet, theirs: BrokerSet, **flags: Any) -> None:
        """Small messages in large batches sent, and then consumed, by turns."""
        load = {"size": 128, "batch": BATCHES[128], "seconds": self._seconds}
        # Both have enough of a backlog then.
        for broker, more in ((ours, flags), (theirs, {})):
            full = {**load, "seconds": 60, "bytes_max": 2 * _BACKLOG_BYTES}
            generate("produce", broker.address, **full, **more)
        for what in ("produce", "consume"):
            measured: tuple[list[Figures], list[Figures]] = [], []
            for at in range(self._rounds):
                limits = {"group": f"{name}-{at}"}
                if what == "consume":
                    limits["bytes_max"] = str(_BACKLOG_BYTES)
                turns = [(measured[0], ours, flags), (measured[1], theirs, {})]
                # The second one of a round finds the machine in another state than the first.
                for found, broker, more in reversed(turns) if at % 2 else turns:
                    found.append(generate(what, broker.address, **load, **limits, **more))
                self._say(f"{what}, {name}", measured[0][-1], measured[1][-1])
            self._keep(f"{what}_{name}", measured[0])
            self._ratio(f"{what}_{name}", *measured)
            self._figures[f"{what}_{name}_cpu"] = self._cpu_ratio(
                what, (ours, {**flags, "group": f"{name}-cpu"}), (theirs, {"group": f"{name}-cpu"})
            )

    def _cpu_ratio(
        self, what: str, ours: tuple[BrokerSet, Any], theirs: tuple[BrokerSet, Any]
    ) -> float:
        """CPU of the brokers for the same work: the median over pairs whose order alternates."""
        load = {"size": 128, "batch": 100, "seconds": 60, "warm_bytes": 0}
        load["bytes_max"] = _CPU_BYTES[what]
        ratios = []
        for at in range(_CPU_PAIRS):
            spent_s: dict[bool, float] = {}
            for is_ours in (bool(at % 2), not at % 2):
                broker, flags = ours if is_ours else theirs
                cpu_s = broker.cpu_s()
                again = {**load, **flags, "group": f"{flags['group']}-{at}"}
                generate(what, broker.address, **again)
                spent_s[is_ours] = broker.cpu_s() - cpu_s
            ratios.append(spent_s[True] / spent_s[False])
        progress.print(f"{what}, CPU of pairs: {' '.join(f'{one:.3f}' for one in sorted(ratios))}")
        return statistics.median(ratios)

    def rss(self) -> None:
        with self._broker() as broker:
            time.sleep(1.0)  # it settles; nothing waits for a result here
            self._figures["rss_idle_mb"] = broker.rss_mb()
            create_topic(broker.address, "bench", 8)
            with connect_many(broker.address, producers=1000, consumers=1000):
                self._figures["rss_2000_clients_mb"] = broker.rss_mb()
            flags = {"size": 1024, "batch": BATCHES[1024], "seconds": self._seconds}
            generate("produce", broker.address, **flags)
            generate("consume", broker.address, **flags, bytes_max=50_000_000)
            self._figures["rss_after_load_mb"] = broker.rss_mb()

    # -- pieces -----------------------------------------------------------------------------------

    def _broker(self, flush: str = "async") -> BrokerSet:
        return single(self._next(), flush)

    def _next(self) -> Path:
        self._count += 1
        return self._directory / f"broker-{self._count}"

    def _fill(self, broker: BrokerSet, size_bytes: int) -> None:
        flags = {"size": 1024, "batch": BATCHES[1024], "bytes_max": size_bytes}
        generate("produce", broker.address, **flags, seconds=600)

    def _say(self, what: str, ours: Figures, theirs: Figures) -> None:
        ratio = ours["messages_per_s"] / theirs["messages_per_s"]
        progress.print(
            f"{what}: {ours['messages_per_s']:,.0f} of {theirs['messages_per_s']:,.0f} messages/s, "
            f"{ratio:.2f}"
        )

    def _keep(self, name: str, rounds: list[Figures]) -> None:
        for figure in ("messages_per_s", "mb_per_s"):
            self._figures[f"{name}_{figure}"] = statistics.median(one[figure] for one in rounds)

    def _ratio(self, name: str, ours: list[Figures], theirs: list[Figures]) -> None:
        rates = [
            statistics.median(one["messages_per_s"] for one in rounds) for rounds in (ours, theirs)
        ]
        self._figures[name] = rates[0] / rates[1]


def show(figures: Figures, goals: Mapping[str, tuple[float, str]] = GOALS) -> None:
    console = Console()
    table = Table("figure", "value", "goal", box=None, pad_edge=False)
    for name, value in figures.items():
        goal, how = goals.get(name, (0.0, ""))
        shown = f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"
        table.add_row(name, shown, f"{how} {goal:g}" if goal else how)
    console.print(table)


if __name__ == "__main__":
    main()
