"""Sends of the official RocketMQ 5 client for Go, against our own unary Send.

    unary      Sends of 128 B from 64 callers, by bench/load
    rocketmq   the same by the official client, 64 in flight, to the same broker
    replayed   the calls of the official client, fields and all, by bench/load
    peer       by the official client to a RocketMQ 5 whose gRPC proxy runs already, over TLS, with
               a topic `bench` of 8 queues: --peer 127.0.0.1:18081

They take turns; a ratio is of the medians over the rounds. `broker_us` and `generator_us` are CPU a
send. The official client costs three times what bench/load does, and with one core to itself it is
the limit, whatever the broker costs. So `rocketmq_vs_unary_cpu` compares what the broker spends on
a send, and `replayed_vs_unary` its rates under a load that is not the limit. `--json` prints one
object. Needs Go.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.broker import Figures, create_topic, progress, show
from bench.broker_set import BrokerSet, single
from bench.calls import build
from tests.rocketmq.official.client import CLIENTS, Client
from tests.support.foreign import programs

GOALS = {
    "rocketmq_vs_unary": (0.7, "at least"),
    "replayed_vs_unary": (0.7, "at least"),
    "rocketmq_vs_peer": (1.0, "at least"),
}
_CALLERS, _SIZE, _TOPIC = 64, 128, "bench"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--peer", help="the address of a RocketMQ 5 proxy")
    arguments = parser.parse_args()
    if programs.missing("go"):
        sys.exit("the official client is built with Go: install Go 1.24, see https://go.dev")
    with tempfile.TemporaryDirectory(prefix="mq-bench-") as directory:
        figures = _measured(Path(directory), arguments)
    print(json.dumps(figures)) if arguments.json else show(figures, GOALS)


def _measured(directory: Path, arguments: Any) -> Figures:
    command = programs.command("go", CLIENTS / "go")
    generator = build(directory / "load")
    seconds: float = arguments.seconds
    rounds: dict[str, list[Figures]] = {}
    with single(directory / "broker", "async") as broker, Client(command, broker.address) as client:
        create_topic(broker.address, _TOPIC, 8)
        _official(client, broker, 1.0)  # it starts, and asks for routes and settings
        for _ in range(arguments.rounds):
            rounds.setdefault("unary", []).append(_generated(generator, broker, "unary", seconds))
            rounds.setdefault("rocketmq", []).append(_official(client, broker, seconds))
            replayed = _generated(generator, broker, "rocketmq", seconds)
            rounds.setdefault("replayed", []).append(replayed)
            if arguments.peer:
                with Client(command, arguments.peer, {"ROCKETMQ_TLS": "1"}) as peer:
                    _official(peer, None, 1.0)
                    rounds.setdefault("peer", []).append(_official(peer, None, seconds))
            progress.print("; ".join(f"{name} {_said(one[-1])}" for name, one in rounds.items()))
    figures: Figures = {}
    for name, found in rounds.items():
        for figure in found[0]:
            if (name, figure) == ("peer", "broker_us"):
                continue  # it is not known
            figures[f"{name}_{figure}"] = statistics.median(one[figure] for one in found)
    for other in ("unary", "peer"):
        if other in rounds:
            figures[f"rocketmq_vs_{other}"] = figures["rocketmq_per_s"] / figures[f"{other}_per_s"]
    figures["replayed_vs_unary"] = figures["replayed_per_s"] / figures["unary_per_s"]
    for name in ("rocketmq", "replayed"):
        figures[f"{name}_vs_unary_cpu"] = figures["unary_broker_us"] / figures[f"{name}_broker_us"]
    return figures


def _generated(generator: Path, broker: BrokerSet, mode: str, seconds: float) -> Figures:
    command = [str(generator), "-mode", mode, "-address", broker.address]
    command += ["-seconds", str(seconds), "-callers", str(_CALLERS)]
    cpu_s = broker.cpu_s()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the load generator failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return _figures(
        found["calls"], found["seconds"], broker.cpu_s() - cpu_s, found["generator_cpu_s"]
    )


def _official(client: Client, broker: BrokerSet | None, seconds: float) -> Figures:
    """The CPU of a peer's broker is not known."""
    cpu_s = broker.cpu_s() if broker else 0.0
    load = {"topic": _TOPIC, "in_flight": _CALLERS, "seconds": seconds, "size": _SIZE}
    found = client.do("load", **load)
    if found["errors"]:
        sys.exit(f"a send failed: {found['errors'][0]}")
    broker_s = broker.cpu_s() - cpu_s if broker else 0.0
    return _figures(sum(found["sent"]), found["seconds"], broker_s, found["cpu_s"])


def _figures(calls: int, seconds: float, broker_s: float, generator_s: float) -> Figures:
    each = 1e6 / max(1, calls)
    return {
        "per_s": calls / seconds,
        "broker_us": broker_s * each,
        "generator_us": generator_s * each,
    }


def _said(figures: Figures) -> str:
    return (
        f"{figures['per_s']:,.0f}/s ({figures['broker_us']:.0f} µs, "
        f"generator {figures['generator_us']:.0f} µs)"
    )


if __name__ == "__main__":
    main()
