"""The locks of ordered groups, on their way into the log.

Who is to have which, `membership` decides; what is locked, is in the replicated state once the
entry is applied, and nowhere before. How far the last holder has come is in the log before the lock
is: whoever leads next, the next holder starts there.
"""

from __future__ import annotations

from collections.abc import Mapping

from mq.broker.consumer.commits import Commits
from mq.broker.queue import Queue
from mq.broker.writing import EntryWriter
from mq.errors import MqError
from mq.logging import get_logger
from mq.wire.v1.state_pb2 import Command, LockQueues, QueueLock

log = get_logger(__name__)

_LOCKS_MAX = 2_000  # in one entry


async def write_locks(
    writer: EntryWriter, commits: Commits, group: str, changes: Mapping[Queue, str]
) -> bool:
    """Whether all of them are applied when this returns. If not, nothing is lost: the next tick
    tries again, or another node leads.
    """
    locks = [
        QueueLock(topic=queue.topic, queue_id=queue.queue_id, member_id=member_id)
        for queue, member_id in sorted(changes.items())
    ]
    await commits.flush()
    try:
        for at in range(0, len(locks), _LOCKS_MAX):
            part = LockQueues(group=group, locks=locks[at : at + _LOCKS_MAX])
            await writer.write(Command(lock_queues=part))
    except MqError as error:
        log.info("queue locks are not written", group=group, error=str(error))
        return False
    return True
