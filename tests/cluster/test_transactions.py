"""Transactions while leaders of three real processes are killed: each ends once, as its producer's
own database has it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mq.client import Admin, HalfMessage, aio
from tests.support.broker_set import BrokerSet

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 300
WORKERS = 20


def test_each_transaction_ends_once_though_leaders_are_killed(tmp_path: Path) -> None:
    local: dict[str, int] = {}
    states: list[str] = []
    asked: list[str] = []

    async def execute(message: HalfMessage, arg: Any) -> str:
        if arg % 5 == 0:
            return "ROLLBACK"
        local[message.transaction_id] = arg
        return "UNKNOWN" if arg % 7 == 0 else "COMMIT"

    async def check(message: HalfMessage) -> str:
        asked.append(message.transaction_id)
        return "COMMIT" if message.transaction_id in local else "ROLLBACK"

    async def produce(brokers: BrokerSet) -> None:
        async with aio.TransactionProducer(
            brokers.servers,
            "shop",
            execute,
            check,
            timeout_s=120,
            first_check_s=0.5,
            check_interval_s=0.5,
            checks_max=1_000,
        ) as producer:

            async def work(worker: int) -> None:
                for number in range(worker, COUNT, WORKERS):
                    sent = await producer.send_in_transaction("orders", str(number), number)
                    states.append(sent.state)

            working = asyncio.gather(*(work(worker) for worker in range(WORKERS)))
            async with asyncio.timeout(300):
                while len(states) < COUNT // 3:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
            killed = await asyncio.to_thread(brokers.kill_leader)
            await asyncio.to_thread(brokers.start, killed)
            await working
            # Idle by now, and the leader is lost once more: it can be asked all the same.
            killed = await asyncio.to_thread(brokers.kill_leader)
            async with aio.Admin(brokers.servers, timeout_s=120) as admin, asyncio.timeout(300):
                while (await admin.list_transactions()).open:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(brokers.start, killed)

    with BrokerSet(tmp_path) as brokers:
        asyncio.run(produce(brokers))
        with Admin(brokers.servers, timeout_s=120) as admin:
            found = sorted(
                int(one.message.body)
                for queue in admin.describe_topic("orders").queues
                for one in admin.browse_messages(
                    "orders", queue.queue_id, 0, max_messages=1000
                ).messages
            )
        brokers.wait_same()
    assert found == sorted(local.values()), brokers.logs()
    assert len(states) == COUNT
    assert asked
