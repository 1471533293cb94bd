"""Waiting for one future until a deadline."""

from __future__ import annotations

import asyncio
from typing import Any


async def done_by(future: asyncio.Future[Any], deadline_s: float) -> bool:
    """Cheaper than asyncio.wait, for every batch. Not wait_for, which would cancel a future that
    others wait for.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(wake)
    timer = loop.call_at(deadline_s, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()
