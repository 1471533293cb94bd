"""The progress of a stream, committed to the broker as the offsets of a group, so that its lag can
be seen there.

Nothing is read from there again: the checkpoint says where the stream goes on. So a commit that
fails is logged, and the stream goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future

from mq.client import QueueRef
from mq.client.aio import PullConsumer
from mq.client.lowlevel import ConnectionOptions, background
from mq.errors import MqError

_log = logging.getLogger(__name__)

_WAIT_S = 5.0
# After one that failed.
_PAUSE_S = 5.0


class Progress:
    """The progress of a stream with a group."""

    def __init__(self, connection: ConnectionOptions, group: str) -> None:
        self._group = group
        self._background = background()
        self._consumer = PullConsumer(group=group, **connection.shared)
        self._told: dict[QueueRef, int] = {}
        self._under_way: Future[None] | None = None
        self._failed_at_s = -_PAUSE_S

    def done(self, queues: Mapping[QueueRef, int], *, wait: bool) -> None:
        """All messages before these are done with. Without `wait` it is on its way when this
        returns, or left to the next one while another is.
        """
        changed = {ref: at for ref, at in queues.items() if self._told.get(ref) != at}
        is_busy = self._under_way is not None and not self._under_way.done()
        is_failing = time.monotonic() < self._failed_at_s + _PAUSE_S
        if not changed or is_failing or (is_busy and not wait):
            return
        self._settle()
        self._told = {**self._told, **changed}
        self._under_way = self._background.submit(self._commit(changed))
        if wait:
            self._settle()

    async def _commit(self, queues: dict[QueueRef, int]) -> None:
        try:
            await self._consumer.commit(queues)
        except MqError as error:
            self._told = {}
            self._failed_at_s = time.monotonic()
            _log.warning("group %s: progress was not committed: %s", self._group, error)

    def _settle(self) -> None:
        """Waits for what is under way, for a while."""
        if self._under_way is None:
            return
        try:
            self._under_way.result(_WAIT_S)
        except TimeoutError:
            self._under_way.cancel()
            _log.warning("group %s: a commit of progress takes too long", self._group)
        self._under_way = None

    def close(self) -> None:
        self._settle()
        self._background.run(self._consumer.close())
