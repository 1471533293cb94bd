"""Administration: topics, groups, single messages, the brokers, users and what they may do.

All broker sets of the cluster are asked, and their answers are merged into the messages of
proto/mq/v1/admin.proto; nothing is kept here. Errors are those of `mq.errors`, as the brokers give
them. The calls are in the modules of the base classes.
"""

from __future__ import annotations

from mq.client.admin.groups import GroupAdmin
from mq.client.admin.messages import MessageAdmin
from mq.client.admin.security import SecurityAdmin
from mq.client.admin.sets import SetAdmin
from mq.client.admin.topics import TopicAdmin


class Admin(TopicAdmin, GroupAdmin, MessageAdmin, SetAdmin, SecurityAdmin):
    """Topics, groups, single messages, the brokers, users and what they may do.

    >>> import asyncio
    >>> from mq.client.aio import Admin
    >>> async def main():
    ...     async with Admin("127.0.0.1:8081") as admin:
    ...         print((await admin.create_topic("payments", queues=4)).write_queues)
    ...         topics = await admin.list_topics()
    ...         print([one.info.topic for one in topics if one.info.topic == "payments"])
    ...         print((await admin.alter_topic("payments", read_queues=8)).read_queues)
    ...         await admin.delete_topic("payments")
    >>> asyncio.run(main())
    4
    ['payments']
    8

    Answers are the messages of proto/mq/v1/admin.proto, errors those of `mq.errors`. Reads of all
    broker sets return what the reachable sets have: `missing_sets` names the others.
    """
