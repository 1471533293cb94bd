"""An asyncio loop for one command, which SIGTERM ends as Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run. SIGTERM cancels `work`, so that it closes what it has opened, and raises
    KeyboardInterrupt here: raised anywhere in the loop, as Python's own handler would, it also ends
    callbacks of gRPC, which print tracebacks.
    """
    before = signal.getsignal(signal.SIGTERM)
    # While the loop is being made there is nothing that a signal could cancel: it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return asyncio.run(_cancelled_by_sigterm(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, Result]) -> Result:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return await task
