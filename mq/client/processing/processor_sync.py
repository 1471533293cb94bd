"""Exactly-once processing for programs without asyncio: handlers run on threads of their own, all
else on the process's background loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from mq.client.consumer.options import CACHE_BYTES, CACHE_MESSAGES, Start, Subscriptions
from mq.client.messages import QueueRef, ReceivedMessage
from mq.client.processing import processor
from mq.client.processing.processor import Output
from mq.client.sync import background


class Processor:
    """
    >>> def shout(messages):
    ...     return [("sync-loud", message.body.upper()) for message in messages]
    >>> with Processor(servers, "sync-shouters", "greetings", shout, start="earliest"):
    ...     with Consumer(servers, "sync-listeners", "sync-loud", start="earliest") as listener:
    ...         print([message.body for message in listener.poll(timeout_s=10)])
    [b'HELLO', b'WORLD']

    Up to `threads` handlers run at the same time. The other arguments are those of
    `mq.client.aio.Processor`.
    """

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Sequence[str],
        group: str,
        subscriptions: Subscriptions,
        handler: Callable[[list[ReceivedMessage]], Iterable[Output] | None],
        *,
        start: Start = "latest",
        batch_messages: int = 32,
        threads: int = 4,
        retry_delay_s: float = 1.0,
        compress_above_bytes: int = 4096,
        cache_messages: int = CACHE_MESSAGES,
        cache_bytes: int = CACHE_BYTES,
        zone: str = "",
    ) -> None:
        self._processor = processor.Processor(
            servers,
            group,
            subscriptions,
            self._call,
            start=start,
            batch_messages=batch_messages,
            tasks=threads,
            retry_delay_s=retry_delay_s,
            compress_above_bytes=compress_above_bytes,
            cache_messages=cache_messages,
            cache_bytes=cache_bytes,
            zone=zone,
        )
        self._handler = handler
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"mq-{group}")
        self._is_handling = threading.local()
        self._background = background()

    async def _call(self, messages: list[ReceivedMessage]) -> list[Output]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._handle, messages)

    def _handle(self, messages: list[ReceivedMessage]) -> list[Output]:
        self._is_handling.here = True
        try:
            return list(self._handler(messages) or ())
        finally:
            self._is_handling.here = False

    def start(self) -> None:
        """Returns when it has joined its group. Raises why it could not: Unreachable,
        SubscriptionMismatch, TopicNotFound...
        """
        self._background.run(self._processor.start())

    @property
    def assignment(self) -> set[QueueRef]:
        return self._processor.assignment

    def join(self) -> None:
        """Waits until the processor is closed. Raises what it was ended with by the broker."""
        self._background.run(self._processor.join())

    def close(self) -> None:
        """Takes no more messages, and waits for the batches at work. Raises what ended the
        processor, if nobody was told.
        """
        if getattr(self._is_handling, "here", False):
            raise RuntimeError("a handler that closes its processor would wait for itself")
        try:
            self._background.run(self._processor.close())
        finally:
            self._pool.shutdown(wait=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise
