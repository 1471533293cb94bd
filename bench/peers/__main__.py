"""Our broker and client beside others, one node each, on this machine.

    batches    many small messages as fast as the broker's own load tool sends them
    calls      one message a request, each caller waiting for its answer
    clients    Python clients, one process: single messages sent, a backlog received

Peers are RocketMQ, Kafka, NATS JetStream, RabbitMQ and Redis streams, and the Python clients
confluent-kafka, aiokafka and nats.py. Each broker runs alone with its clients, once acknowledging
from the page cache and once after fsync, as far as it offers both. Figures are medians over the
rounds, in messages a second.

RocketMQ, Kafka and PerfTest come by Maven (Java 17), NATS by Go, Python clients by pip; RabbitMQ
and Redis have to be installed. What is missing or fails is skipped, with the reason.

What was fetched stays in DIR: the next run fetches nothing. It is --directory, else the
environment variable BENCH_PEERS_DIR, else mq-peers in the user's cache directory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from bench.broker import progress
from bench.generator import warm_memory
from bench.peers.clients import CLIENTS, Client, run
from bench.peers.installation import Installation, Skipped
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.ours import Mq, MqEncoded
from bench.peers.peer import Flush, Peer, Processes
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.peers.report import SIZES, Figure, Report, middle, shown
from bench.peers.rocketmq import RocketMq

PEERS: tuple[type[Peer], ...] = (Mq, MqEncoded, RocketMq, Kafka, Nats, RabbitMq, Redis)
WORKS = ("batches", "calls", "clients")


def main() -> None:
    arguments = _parser().parse_args()
    report = Report.merged(arguments.show) if arguments.show else Bench(arguments).run()
    if arguments.plot:
        from bench.peers.plot import draw  # noqa: PLC0415 - matplotlib takes a second

        draw(report, arguments.plot)
    print(report.to_json()) if arguments.json else report.show()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--only", type=_listed(names), default=names, help=f"some of {', '.join(names)}"
    )
    parser.add_argument(
        "--work", type=_listed(WORKS), default=WORKS, help=f"some of {', '.join(WORKS)}"
    )
    parser.add_argument(
        "--flush", type=_listed(get_args(Flush)), default=get_args(Flush), help="async or sync"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement, about")
    parser.add_argument("--callers", type=int, default=64, help="of calls, at the same time")
    parser.add_argument(
        "--warm-bytes",
        type=int,
        default=1_000_000_000,
        help="page cache to touch before each measurement of a broker, see bench.generator",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG or PNG")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="of peers, see above")
    parser.add_argument("--offline", action="store_true", help="fetch nothing, use what is there")
    parser.add_argument(
        "--show",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: show what earlier runs printed with --json",
    )
    return parser


def _listed(allowed: object) -> Callable[[str], list[str]]:
    """A type for argparse: names with commas, each one of these."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        assert isinstance(allowed, list | tuple)
        if wrong := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{wrong[0]}: use {', '.join(allowed)}")
        return names

    return parse


def peers_directory(chosen: Path | None) -> Path:
    if chosen is None and (named := os.environ.get("BENCH_PEERS_DIR")):
        chosen = Path(named)
    if chosen is None:
        cache = os.environ.get("XDG_CACHE_HOME")
        chosen = (Path(cache) if cache else Path.home() / ".cache") / "mq-peers"
    return chosen.absolute()


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._installation = Installation(
            peers_directory(arguments.directory), offline=arguments.offline
        )
        self._report = Report()

    def run(self) -> Report:
        """All that is chosen; as far as it came, if it is ended by a signal."""
        try:
            for kind in PEERS:
                if kind.name in self._arguments.only:
                    with self._skipping(kind.name):
                        progress.print(f"{kind.name}: obtaining it, if it is not there yet")
                        self._measure(kind(self._installation))
        except KeyboardInterrupt:
            self._report.skipped["the rest"] = "ended by a signal"
        return self._report

    def _measure(self, peer: Peer) -> None:
        for flush in self._arguments.flush:
            with self._skipping(f"{peer.name}, {flush} flush"):
                # Says so before anything starts, where a peer does not offer it.
                peer.durability(flush)
                with self._running(peer, flush) as address:
                    self._brokers(peer, flush)
                    if flush == "async" and "clients" in self._arguments.work:
                        self._clients(peer, address)

    @contextlib.contextmanager
    def _running(self, peer: Peer, flush: Flush) -> Iterator[str]:
        with (
            tempfile.TemporaryDirectory(prefix="mq-peers-", ignore_cleanup_errors=True) as data,
            Processes(Path(data) / peer.name) as processes,
        ):
            yield peer.start(processes, flush)

    def _brokers(self, peer: Peer, flush: Flush) -> None:
        seconds, callers = self._arguments.seconds, self._arguments.callers
        for work, tool in peer.tools.items():
            if work not in self._arguments.work:
                continue
            for size in SIZES:
                with self._skipping(f"{peer.title}, {work} of {SIZES[size]}"):
                    rounds = []
                    for _ in range(self._arguments.rounds):
                        warm_memory(self._arguments.warm_bytes)
                        if work == "batches":
                            rounds.append(peer.batches(size, seconds))
                        else:
                            rounds.append(peer.calls(size, seconds, callers))
                    self._keep(peer.title, work, size, flush, rounds, tool, peer)

    def _clients(self, peer: Peer, address: str) -> None:
        for client in CLIENTS:
            if client.peer == peer.name:
                with self._skipping(client.name):
                    self._client(peer, client, address)

    def _client(self, peer: Peer, client: Client, address: str) -> None:
        python = client.python(self._installation)
        for size in SIZES:
            count = peer.backlog[size]
            filled = f"{client.program.partition('.')[0]}-{size}"
            peer.fill(filled, size, count)
            for way, tool in client.tools.items():
                rounds = []
                for at in range(self._arguments.rounds):
                    topic = filled if way == "receive" else f"{filled}-{at}"
                    amount = count if way == "receive" else size
                    seconds = self._arguments.seconds
                    rounds.append(run(python, client, way, address, topic, amount, seconds))
                self._keep(client.name, way, size, "async", rounds, tool, peer)

    def _keep(
        self,
        title: str,
        work: str,
        size: int,
        flush: Flush,
        rounds: list[float],
        tool: str,
        peer: Peer,
    ) -> None:
        rate = middle(rounds)
        spread = (min(rounds), max(rounds))
        durability = peer.durability(flush)
        self._report.figures.append(
            Figure(title, work, size, flush, rate, spread, tool, durability)
        )
        each = ", ".join(shown(one) for one in rounds)
        progress.print(f"{title}, {flush}, {work} of {SIZES[size]}: {each} messages/s")

    @contextlib.contextmanager
    def _skipping(self, what: str) -> Iterator[None]:
        """What cannot be had or fails is left out, with its reason; the rest goes on."""
        try:
            yield
        except Skipped as why:
            self._report.skipped[what] = str(why)
            progress.print(f"skipped: {what}: {why}")


if __name__ == "__main__":
    # An end by a signal leaves no broker behind, whichever signal it is: blocks are left in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
