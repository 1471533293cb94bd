"""Administration for programs with asyncio: topics, groups, single messages, the brokers.

All broker sets of the cluster are asked, and what they answer is put together in the messages of
proto/mq/v1/admin.proto; nothing is kept here. Errors are those of `mq.errors`, as the brokers give
them. The modules of its bases have the calls.
"""

from __future__ import annotations

from mq.client.admin.admin_calls import Answers
from mq.client.admin.admin_groups import GroupAdmin, OffsetTarget
from mq.client.admin.admin_messages import MessageAdmin
from mq.client.admin.admin_operations import Operations
from mq.client.admin.admin_sets import SetAdmin
from mq.client.admin.admin_topics import TopicAdmin, TypeName
from mq.client.closing import AsyncClosing

__all__ = ["Admin", "Answers", "OffsetTarget", "TypeName"]


class Admin(TopicAdmin, GroupAdmin, MessageAdmin, SetAdmin, Operations, AsyncClosing):
    """As `mq.client.Admin`, with coroutines.

    >>> import asyncio
    >>> from mq.client.aio import Admin
    >>> async def main():
    ...     async with Admin("127.0.0.1:8081") as admin:
    ...         topic = await admin.create_topic("invoices", queues=4)
    ...         print(topic.topic, topic.write_queues)
    ...         await admin.delete_topic("invoices")
    >>> asyncio.run(main())
    invoices 4
    """

    async def close(self) -> None:
        await self._connection.close()
