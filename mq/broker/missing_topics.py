"""Topics that are asked for and do not exist: waiting for them, and similar names.

Where the first message creates a topic, a consumer may be there before it. It creates nothing: a
slip in a name would be a topic. It waits, and gets the topic from its first message on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mq import names
from mq.broker.core import BrokerSettings
from mq.broker.directory import Directory
from mq.broker.state.topics import Topics
from mq.errors import MqError, TopicNotFound

# The highest rate of comparing names, for all clients together: it takes the loop some
# milliseconds.
_GUESSES_A_SECOND = 20
_KNOWN_MAX = 256


class MissingTopics:
    def __init__(
        self,
        settings: BrokerSettings,
        topics: Topics,
        directory: Directory,
        steady_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._directory = directory
        self._steady_ms = steady_ms
        self._waiters: set[asyncio.Future[None]] = set()
        # By missing name: similar names, and the version of the topics they are of.
        self._guesses: dict[str, list[str]] = {}
        self._guessed_of = -1, -1
        self._second, self._guesses_in_second = 0, 0

    # -- waiting ----------------------------------------------------------------------------------

    def is_awaited(self, name: str) -> bool:
        """No set has it, and its first message will create it. Raises IllegalTopic if nothing
        can.
        """
        if name in self._topics:
            return False
        names.check_topic(name)
        may_come = self._settings.creates_topics and not names.is_internal_topic(name)
        return may_come and not self._directory.elsewhere(name)

    async def until_created(self, name: str, wait_s: float) -> bool:
        """Returns whether this set has it within that time. Raises NotLeader if this node steps
        down.
        """
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while self.is_awaited(name):
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0 or not await self._change(left_s):
                break
        return name in self._topics

    async def _change(self, timeout_s: float) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    def on_topics(self) -> None:
        """A topic was created, changed or deleted."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def step_down(self, error: MqError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    # -- guessing ---------------------------------------------------------------------------------

    def similar(self, name: str) -> list[str]:
        """Topics of the cluster with similar names; none if there are too many requests."""
        version = self._topics.version, self._directory.changes
        if version != self._guessed_of or len(self._guesses) >= _KNOWN_MAX:
            self._guessed_of = version
            self._guesses.clear()
        if name not in self._guesses:
            if names.is_internal_topic(name) or not self._may_compare():
                return []
            self._guesses[name] = names.similar_names(name, self._directory.topic_names())
        return self._guesses[name]

    def _may_compare(self) -> bool:
        second = self._steady_ms() // 1000
        if second != self._second:
            self._second, self._guesses_in_second = second, 0
        self._guesses_in_second += 1
        return self._guesses_in_second <= _GUESSES_A_SECOND

    def explained(self, error: MqError, may_see: Callable[[str], bool]) -> MqError:
        """The error, with the topics that may have been meant if it is about a missing one, as far
        as the caller may see them.
        """
        if not isinstance(error, TopicNotFound) or not error.topic:
            return error
        hint = names.did_you_mean(filter(may_see, self.similar(error.topic)))
        return TopicNotFound(f"{error}{hint}") if hint else error
