"""How long the event loop is held at a time: the CPU time of its longest callback.

    with LoopTurns() as turns:
        ...
    assert turns.longest_s < 0.1

CPU time of the loop's thread, and no time of the clock: a busy machine makes everything take
longer, and other threads of the process take the interpreter away. A look for cycles counts for
none: it comes after so many allocations, whichever callback makes the last of them.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Self

_run = asyncio.Handle._run


class LoopTurns:
    def __init__(self) -> None:
        self.longest_s = 0.0
        self._collected_s = 0.0
        self._thread = threading.get_ident()

    def __enter__(self) -> Self:
        def run(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            self._collected_s = 0.0
            _run(handle)
            turn_s = time.thread_time() - began_s - self._collected_s
            self.longest_s = max(self.longest_s, turn_s)

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collect)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = _run  # type: ignore[method-assign]
        gc.callbacks.remove(self._collect)

    def _collect(self, phase: str, _: object) -> None:
        if threading.get_ident() == self._thread:
            now_s = time.thread_time()
            self._collected_s += now_s if phase == "stop" else -now_s

    def reset(self) -> float:
        """The longest one so far, which is forgotten."""
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s
