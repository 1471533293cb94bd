"""The transaction producer for programs without asyncio: `execute` runs on the caller's thread,
`check` on threads of its own, the core (see `transactions`) on the background thread of `sync`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mq.client.closing import Closing
from mq.client.cluster.connection import Connection
from mq.client.messages import Message
from mq.client.sync import background
from mq.client.transaction.checks import (
    Answering,
    Checks,
    HalfMessage,
    Resolution,
    TransactionResult,
    TransactionSettings,
    resolution_of,
)
from mq.client.transaction.sender import TransactionSender

log = logging.getLogger(__name__)


class TransactionProducer(Closing):
    """Sends messages that are seen when a local transaction has succeeded, and only then. Any
    number of threads may use one.

    >>> from mq.client import TransactionProducer
    >>> orders = {}
    >>> def execute(message, arg):
    ...     orders[message.transaction_id] = arg
    ...     return "COMMIT"
    >>> def check(message):
    ...     return "COMMIT" if message.transaction_id in orders else "UNKNOWN"
    >>> with TransactionProducer("127.0.0.1:8081", "shop", execute, check) as producer:
    ...     producer.send_in_transaction("orders", b"order 7", 7).state
    'COMMIT'

    `producer_group`: producers that know the same local transactions, such as the processes of one
    service. When no word comes, the broker asks any living one of them.
    `execute(message, arg)`: runs when the half message is stored, on the thread of the caller, and
    returns "COMMIT", "ROLLBACK" or "UNKNOWN". An exception is UNKNOWN: it is logged, and `check`
    decides.
    `check(message)`: what became of the transaction `message.transaction_id`? It runs on one of
    `check_threads` threads, perhaps in another process than `execute` did, and perhaps while
    `execute` is at work there: what it does not find is UNKNOWN, not ROLLBACK, as long as it may
    still come.
    `timeout_s`: how long the half message, and the end, may each wait for an answer.
    `first_check_s`, `check_interval_s`, `checks_max`: when and how often the broker asks; None: as
    it is configured. Each message may have its own.
    `in_flight_max`: half messages without an answer; who sends more waits.

    A transaction belongs to one broker set of its topic. All sets of the cluster can ask, from the
    moment on when the producer is made.
    """

    def __init__(  # noqa: PLR0913 # settings, all of them by name
        self,
        servers: str | Sequence[str],
        producer_group: str,
        execute: Callable[[HalfMessage, Any], Resolution | str],
        check: Callable[[HalfMessage], Resolution | str],
        *,
        timeout_s: float = 3.0,
        first_check_s: float | None = None,
        check_interval_s: float | None = None,
        checks_max: int | None = None,
        check_threads: int = 4,
        compress_above_bytes: int = 4096,
        in_flight_max: int = 64,
        zone: str = "",
    ) -> None:
        settings = TransactionSettings(
            producer_group=producer_group,
            timeout_s=timeout_s,
            compress_above_bytes=compress_above_bytes,
            in_flight_max=in_flight_max,
            checks=Checks(first_check_s, check_interval_s, checks_max),
        )
        connection = Connection(servers, zone)
        self._execute = execute
        self._check = check
        self._threads = ThreadPoolExecutor(check_threads, thread_name_prefix="mq-check")
        self._background = background()
        self._core = self._background.run(_make_core(connection, settings, self._answer))
        self._is_closed = False
        atexit.register(self.close)

    def send_in_transaction(  # noqa: PLR0913 # settings, all of them by name
        self,
        topic: str,
        message: Message | bytes | str,
        arg: Any = None,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        first_check_s: float | None = None,
        check_interval_s: float | None = None,
        checks_max: int | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Stores the half message, runs `execute`, and ends the transaction as that says. Raises
        when the half message is not stored, and then `execute` did not run; or when the broker
        refuses the end, because the transaction has ended otherwise or its topic is gone.
        """
        core = self._core
        checks = Checks(first_check_s, check_interval_s, checks_max).validate()
        half = self._background.run(
            core.begin(
                topic,
                message,
                checks,
                queue_id=queue_id,
                broker_set=broker_set,
                timeout_s=timeout_s,
            )
        )
        try:
            resolution = resolution_of(self._execute(half, arg), "execute")
        except Exception:
            log.exception("execute failed for transaction %s: check decides", half.transaction_id)
            resolution = Resolution.UNKNOWN
        except BaseException:
            self._background.loop.call_soon_threadsafe(core.leave, half)
            raise
        return self._background.run(core.end(half, resolution, timeout_s))

    def close(self) -> None:
        """Transactions that are open stay so: others of the group are asked about them."""
        if not self._is_closed:
            self._is_closed = True
            atexit.unregister(self.close)
            if not self._background.is_forked:
                self._background.run(self._core.close())
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, half: HalfMessage) -> Resolution:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call_check, half)

    def _call_check(self, half: HalfMessage) -> Resolution:
        try:
            return resolution_of(self._check(half), "check")
        except Exception:
            log.exception("check failed for transaction %s", half.transaction_id)
            return Resolution.UNKNOWN


async def _make_core(
    connection: Connection, settings: TransactionSettings, answer: Answering
) -> TransactionSender:
    return TransactionSender(connection, settings, answer)
