"""PySyncObj as it comes, as a process: what `bench.raft` compares with.

`python -m bench.raft_stock SELF OTHERS JOURNAL SIZE IN_FLIGHT SECONDS BATCH`: three form a group;
the one that leads replicates entries and prints how many were committed. Its own transport (pickle,
zlib) and journal (no fsync). The batch size is raised, because with the default of 64 KiB larger
entries are sent in pieces that the receiver cannot join.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from pysyncobj import SyncObj, SyncObjConf, replicated


class Stock(SyncObj):  # type: ignore[misc] # PySyncObj has no types
    def __init__(self, address: str, others: list[str], conf: SyncObjConf) -> None:
        super().__init__(address, others, conf)
        self.count = 0

    @replicated  # type: ignore[untyped-decorator] # the same
    def put(self, payload: bytes) -> int:
        self.count += 1
        return len(payload)


def main() -> None:
    address, others, journal, size, in_flight, seconds, is_batching = sys.argv[1:]
    conf = SyncObjConf(
        journalFile=journal,
        appendEntriesBatchSizeBytes=8 << 20,
        appendEntriesUseBatch=is_batching == "yes",
    )
    stock = Stock(address, others.split(","), conf)
    while not stock.isReady():
        time.sleep(0.01)  # it has no event for this
    if stock._isLeader():  # noqa: SLF001 - there is no public one
        # The others have to be ready too, or their catching up would be measured.
        time.sleep(1.0)
        print(json.dumps(load(stock, int(size), int(in_flight), float(seconds))), flush=True)
    sys.stdin.read()
    os._exit(0)


def load(stock: Stock, size: int, in_flight: int, seconds: float) -> dict[str, float]:
    payload, done = os.urandom(size), threading.Semaphore(in_flight)
    committed = 0

    def ended(_result: object, error: int) -> None:
        nonlocal committed
        committed += not error
        done.release()

    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if done.acquire(timeout=seconds):
            stock.put(payload, callback=ended)
    spent = time.perf_counter() - start
    return {"entries": committed, "mb_per_s": committed * size / spent / 1e6}


if __name__ == "__main__":
    main()
