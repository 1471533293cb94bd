"""Producers under which everything here happens, and what they were promised."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.support.raft_cluster import Cluster, Process, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUES = 4
SIZES = (0, 0, 100, 5000)
IN_FLIGHT = 6
# How long a producer waits for an answer before it goes elsewhere: a frozen leader gives none.
_ANSWER_S = 1.0
# Between two sends of a producer, about as long as one takes: all producers together have sends
# under way nearly all the time, and leave the processors to the nodes.
_PAUSE_S = 0.02
# What a producer may be told; after each of them it goes on with a new token.
LEGAL_ERRORS = frozenset({"NOT_LEADER", "OUTCOME_UNKNOWN", "NODE_STOPPED", "DISK_FULL"})


class Acknowledged(NamedTuple):
    raft_index: int
    term: int
    token: str


class Load:
    """Several threads that send unique tokens to the present leader, a few at a time. A token is
    sent once: when its outcome is not known, the next one is another.
    """

    def __init__(self, cluster: Cluster, producers: int = 5) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.errors: set[str] = set()
        self._cluster = cluster
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._produce, args=(f"p{number}",), daemon=True)
            for number in range(producers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        assert self.errors <= LEGAL_ERRORS

    def wait_for_more(self, count: int = 100) -> None:
        """Until so many more are acknowledged than now: the set serves."""
        target = len(self.acknowledged) + count
        poll(
            lambda: len(self.acknowledged) >= target or self._failures,
            f"{count} more entries acknowledged, errors so far {self.errors}",
        )

    def _produce(self, name: str) -> None:
        try:
            rng = random.Random(name)
            targets = self._targets(rng)
            node = next(targets)
            for number in itertools.count():
                if self._is_over.is_set():
                    return
                tokens = [f"{name}.{number}.{i}" for i in range(IN_FLIGHT)]
                node = self._send(node, tokens, rng) or next(targets)
                self._is_over.wait(_PAUSE_S)
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            self._failures.append(error)

    def _targets(self, rng: random.Random) -> Iterator[Process]:
        """Any node that runs."""
        while True:
            nodes = self._cluster.running()
            if nodes:
                yield rng.choice(nodes)
            self._is_over.wait(_PAUSE_S)

    def _send(self, node: Process, tokens: list[str], rng: random.Random) -> Process | None:
        """Whom to ask next, if that is known."""
        waiters = [
            node.begin("send", token=token, queue=rng.randrange(QUEUES), size=rng.choice(SIZES))
            for token in tokens
        ]
        deadline = time.monotonic() + _ANSWER_S
        leader: str | None = None
        for token, waiter in zip(tokens, waiters, strict=True):
            try:
                answer = waiter.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if answer is None:
                return None
            if "error" in answer:
                self.errors.add(answer["error"])
                leader = answer.get("leader")
            else:
                self.acknowledged.append(Acknowledged(answer["index"], answer["term"], token))
                leader = node.name
        # A node that a test has put there may not be started yet.
        return next((one for one in self._cluster.running() if one.name == leader), None)
