"""How long the event loop is held at a time: the CPU time of its longest callback.

    with LoopTurns() as turns:
        ...
    assert turns.longest_s < 0.1

CPU time of the loop's thread, and no time of the clock: a busy machine makes everything take
longer, and other threads of the process take the interpreter away.
"""

from __future__ import annotations

import asyncio
import time
from typing import Self

_run = asyncio.Handle._run


class LoopTurns:
    def __init__(self) -> None:
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        def run(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            _run(handle)
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = _run  # type: ignore[method-assign]

    def reset(self) -> float:
        """The longest one so far, which is forgotten."""
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s
