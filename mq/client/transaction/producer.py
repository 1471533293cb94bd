"""The public transaction producer. Streams and retries belong to its sender, in `sender`."""

from __future__ import annotations

import logging
from typing import Any

from mq.client.lifecycle import AsyncClient
from mq.client.messages import Message
from mq.client.public import arguments_of
from mq.client.transaction.checks import (
    Checks,
    HalfMessage,
    Resolution,
    TransactionOptions,
    TransactionResult,
    resolution_of,
)
from mq.client.transaction.sender import TransactionSender
from mq.errors import ClientClosed

log = logging.getLogger(__name__)


class TransactionProducer(AsyncClient):
    """Sends messages that are seen when a local transaction has succeeded, and only then.

    >>> import asyncio
    >>> from mq.client.aio import TransactionProducer
    >>> orders = {}
    >>> async def execute(message, arg):
    ...     orders[message.transaction_id] = arg
    ...     return "COMMIT"
    >>> async def check(message):
    ...     return "COMMIT" if message.transaction_id in orders else "UNKNOWN"
    >>> async def main():
    ...     async with TransactionProducer("127.0.0.1:8081", "shop", execute, check) as producer:
    ...         print((await producer.send_in_transaction("orders", b"order 7", 7)).state)
    >>> asyncio.run(main())
    COMMIT

    `producer_group`: producers that know the same local transactions, such as the processes of one
    service. When a transaction stays open, the broker asks any living one of them.
    `execute(message, arg)`: runs when the half message is stored, and returns "COMMIT", "ROLLBACK"
    or "UNKNOWN". An exception is UNKNOWN: it is logged, and `check` decides.
    `check(message)`: what became of the transaction `message.transaction_id`? It may run in another
    process than `execute` did, and while `execute` is at work there: a transaction that it does not
    find is UNKNOWN, not ROLLBACK, as long as it may still come.
    `timeout_s`: how long the half message, and the end, may each wait for an answer.
    `first_check_s`, `check_interval_s`, `checks_max`: when and how often the broker asks; None: as
    it is configured. Each message may have its own.
    `in_flight_max`: half messages without an answer; a send beyond that waits.

    A transaction belongs to one broker set of its topic. All sets of the cluster can ask, from
    `start` on.

    It belongs to the event loop on which it is used first.
    """

    @arguments_of(TransactionOptions)
    def __init__(self, options: TransactionOptions) -> None:
        self._options = options
        self._connection = options.connect()
        self._core: TransactionSender | None = None
        self._is_closed = False

    async def start(self) -> None:
        """From now on the broker can ask."""
        self._started()

    async def send_in_transaction(  # noqa: PLR0913 # settings, all of them by name
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
        core = self._started()
        checks = Checks(first_check_s, check_interval_s, checks_max).validate()
        half = await core.begin(
            topic,
            message,
            checks,
            queue_id=queue_id,
            broker_set=broker_set,
            timeout_s=timeout_s,
        )
        try:
            resolution = resolution_of(await self._options.execute(half, arg), "execute")
        except Exception:
            log.exception("execute failed for transaction %s: check decides", half.transaction_id)
            resolution = Resolution.UNKNOWN
        except BaseException:
            core.leave(half)
            raise
        return await core.end(half, resolution, timeout_s)

    async def close(self) -> None:
        """Transactions that are open stay so: others of the group are asked about them."""
        self._is_closed = True
        if self._core is None:
            await self._connection.close()
        else:
            await self._core.close()

    async def _enter(self) -> None:
        await self.start()

    def _started(self) -> TransactionSender:
        if self._is_closed:
            raise ClientClosed("the producer is closed: make another one")
        if self._core is None:
            self._core = TransactionSender(self._connection, self._options, self._answer)
        return self._core

    async def _answer(self, half: HalfMessage) -> Resolution:
        try:
            return resolution_of(await self._options.check(half), "check")
        except Exception:
            log.exception("check failed for transaction %s", half.transaction_id)
            return Resolution.UNKNOWN
