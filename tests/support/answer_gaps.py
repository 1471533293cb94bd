"""The longest time without an answer of a broker: a small call, again and again, on a connection of
its own.

with AnswerGaps(address) as gaps:
    ...
assert gaps.longest_s < 1
"""

from __future__ import annotations

import threading
import time
from typing import Self

import grpc

from mq.wire.v1 import cluster_pb2

_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
_DEADLINE_S = 60.0


class AnswerGaps:
    def __init__(self, address: str) -> None:
        self._address = address
        self._thread = threading.Thread(target=self._ask)
        self._is_over = False
        self._answered = threading.Event()
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._answered.wait(_DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def reset(self) -> float:
        """The longest one so far, which is forgotten."""
        # What is being waited for now counts.
        self._answered.clear()
        assert self._answered.wait(_DEADLINE_S)
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s

    def _ask(self) -> None:
        request = cluster_pb2.RouteRequest().SerializeToString()
        with grpc.insecure_channel(self._address, options=_OWN_CONNECTION) as channel:
            route = channel.unary_unary("/mq.v1.ClusterService/Route")
            route(request, timeout=_DEADLINE_S)
            while not self._is_over:
                began_s = time.monotonic()
                route(request, timeout=_DEADLINE_S)
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self._answered.set()
