"""A soak: `python -m tests.soak --minutes 2`.

Three `mq server` processes; every few seconds the one that leads is killed with SIGKILL and started
again. In the end everything is drained and compared. Progress goes to stderr; the last line on
stdout is JSON, and the exit code is 1 when anything was lost, stored twice, early, or seen though
it was rolled back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mq.client.aio import Admin, PullConsumer
from tests.soak.ledger import Ledger
from tests.soak.workloads import PATIENCE_S, TOPICS, Clients
from tests.support.broker_set import BrokerSet

if TYPE_CHECKING:
    from collections.abc import Callable

_QUEUES = 4
_DRAIN_S = 300.0
_FLAGS = (
    *("--transactions-first-check-ms", "1s"),
    *("--transactions-check-interval-ms", "1s"),
    *("--transactions-checks-max", "1000"),
    *("--broker-member-expires-ms", "300s"),
)


class Soak:
    def __init__(self, brokers: BrokerSet, seed: int, tell: Callable[[str], None]) -> None:
        self.ledger = Ledger()
        self._brokers = brokers
        self._rng = random.Random(seed)
        self._tell = tell
        self._seed = seed

    async def run(self, seconds: float) -> None:
        """Whatever goes wrong is in the ledger."""
        try:
            await self._run(seconds)
        except Exception as error:  # noqa: BLE001 - such as a broker that does not start again
            self.ledger.errors.append(f"the soak did not come to its end: {error}")

    async def _run(self, seconds: float) -> None:
        brokers = self._brokers
        clients = Clients(self.ledger, brokers.servers, self._seed)
        async with Admin(brokers.servers, timeout_s=PATIENCE_S) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, _QUEUES)
        await clients.start()
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            await asyncio.sleep(self._rng.uniform(1.5, 3.5))
            killed = await asyncio.to_thread(brokers.kill_leader)
            self.ledger.kills += 1
            leader = await asyncio.to_thread(brokers.leader, other_than=killed)
            await asyncio.to_thread(brokers.start, killed)
            self._tell(f"killed {killed}, {leader} leads; {self.ledger.progress()}")
        await clients.stop()
        self._tell("all is sent; draining")
        await self._drain(seconds)
        await self._read_topics()
        await clients.close()

    async def _drain(self, seconds: float) -> None:
        """Until everything acknowledged was seen, and no transaction is open."""
        deadline_s = time.monotonic() + _DRAIN_S + seconds
        async with Admin(self._brokers.servers, timeout_s=PATIENCE_S) as admin:
            while time.monotonic() < deadline_s:
                transactions = await admin.list_transactions(transactions_max=1)
                if self.ledger.is_drained and not transactions.open:
                    return
                await asyncio.sleep(0.3)
        self.ledger.errors.append("not drained in time")

    async def _read_topics(self) -> None:
        """Each message of each topic, once, by where it stands."""
        async with PullConsumer(self._brokers.servers) as reader:
            for work in self.ledger.works.values():
                for topic, queue_id in await reader.queues(work.topic):
                    at, end = 0, 1
                    while at < end:
                        result = await reader.pull(topic, queue_id, at, messages_max=1_000)
                        work.stored.update(one.body.decode() for one in result.messages)
                        at, end = result.next_offset, result.end


def soak(directory: Path, seconds: float, seed: int, tell: Callable[[str], None]) -> Ledger:
    with BrokerSet(directory, *_FLAGS) as brokers:
        one = Soak(brokers, seed, tell)
        # Not closed in the end: clients of brokers that do not answer would be waited for.
        asyncio.new_event_loop().run_until_complete(one.run(seconds))
    return one.ledger


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # Clients say a lot while leaders die.
    logging.disable(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="mq-soak-"))
    start_s = time.monotonic()

    def tell(what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - start_s:7.1f} s  {what}\n")
        sys.stderr.flush()

    ledger = soak(directory, arguments.minutes * 60, arguments.seed, tell)
    if ledger.is_good():
        shutil.rmtree(directory)
    else:
        tell(f"{ledger.details()}\ndata and logs are in {directory}")
    seconds = round(time.monotonic() - start_s, 1)
    sys.stdout.write(json.dumps({**ledger.verdict(), "seconds": seconds}) + "\n")
    sys.stdout.flush()
    os._exit(not ledger.is_good())


if __name__ == "__main__":
    main()
