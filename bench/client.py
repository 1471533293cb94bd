"""Our own client, in one process, against a broker of one node with asynchronous flush.

    send       128 B: `send_async` of bodies, of Messages and with asyncio, and `send_many`
    send_1k    `send_async` of bodies of 1 KiB
    poll       poll, the body of every message, commits; against a bare gRPC stream, of grpc.aio
               as the client's own, of the same bytes with nothing decoded; poll_batch, with all
               bodies of a batch, in turns with it
    handler    a PushConsumer whose handler does nothing
    receive    a SimpleConsumer that receives and acknowledges 256 messages at a time
    receive_batch   the same by receive_batch
    arrow_read, arrow_write   poll_arrow against the bare stream, send_arrow against send_async

The figures of receiving are in bench/client_receive.py, those of sending in bench/client_send.py;
each has PARTS, and GOALS of its figures. Ratios are of medians over the rounds of one run, because
machines are shared and noisy. `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import client_arrow, client_receive, client_send
from bench.broker import Figures, run_parts, show
from bench.broker_set import BrokerSet, single

_MODULES = (client_send, client_receive, client_arrow)
GOALS = {name: goal for module in _MODULES for name, goal in module.GOALS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--only", help="comma-separated parts: send, poll, handler, ...")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-") as directory:
        figures = Bench(Path(directory), arguments).run(arguments.only)
    print(json.dumps(figures)) if arguments.json else show(figures, GOALS)


class Bench:
    """What a part is given: brokers to start, and how long to measure."""

    def __init__(self, directory: Path, arguments: Any) -> None:
        self.rounds: int = arguments.rounds
        self.seconds: float = arguments.seconds
        self.figures: Figures = {}
        self._directory = directory
        self._count = 0

    def run(self, only: str | None) -> Figures:
        parts = [
            (name, self._bound(part)) for module in _MODULES for name, part in module.PARTS.items()
        ]
        run_parts(parts, set(only.split(",")) if only else set())
        return self.figures

    def _bound(self, part: Callable[[Bench], None]) -> Callable[[], None]:
        return lambda: part(self)

    def broker(self) -> BrokerSet:
        self._count += 1
        return single(self._directory / f"broker-{self._count}", "async")


if __name__ == "__main__":
    main()
