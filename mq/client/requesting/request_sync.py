"""Requests and replies for programs without asyncio: see `mq.client.requesting.request`."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Self

from mq.client.closing import Closing
from mq.client.consumer.consumer_sync import PushConsumer
from mq.client.consumer.options import Start
from mq.client.messages import Message, ReceivedMessage
from mq.client.producer.producer_sync import Producer
from mq.client.requesting import replies, request
from mq.client.requesting.replies import REPLY_TOPIC
from mq.client.requesting.request import Reply, is_sent_again
from mq.client.sync import background
from mq.errors import MqError

log = logging.getLogger(__name__)


class Requester(Closing):
    """For any number of threads.

    >>> def double(request):
    ...     return request.body * 2
    >>> with Replier(servers, "sync-doublers", "sync-to-double", double):
    ...     with Requester(servers) as requester:
    ...         print(requester.request("sync-to-double", b"ab").body)
    b'abab'

    The arguments are those of `mq.client.aio.Requester`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        reply_topic: str = REPLY_TOPIC,
        timeout_s: float = 10.0,
        zone: str = "",
    ) -> None:
        self._background = background()
        self._core = request.Requester(
            servers, reply_topic=reply_topic, timeout_s=timeout_s, zone=zone
        )

    def start(self) -> None:
        """Returns when replies are heard. Raises why not: Unreachable, IllegalTopic..."""
        self._background.run(self._core.start())

    def request(
        self, topic: str, message: Message | bytes | str, timeout_s: float | None = None
    ) -> ReceivedMessage:
        """The reply. RequestTimeout: none came in time; RequestFailed: the work failed, and why;
        or why the request could not be sent.
        """
        return self._background.run(self._core.request(topic, message, timeout_s))

    def close(self) -> None:
        """Requests without a reply fail."""
        self._background.run(self._core.close())

    def __enter__(self) -> Self:
        self._background.run(self._core.__aenter__())
        return self


class Replier(Closing):
    """Calls `handler` for each request of the topic, on threads of its own; what it returns is the
    reply, and what it raises is told to the requester.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        topic: str,
        handler: Callable[[ReceivedMessage], Reply],
        *,
        start: Start = "latest",
        threads: int = 20,
        zone: str = "",
    ) -> None:
        self._handler = handler
        self._producer = Producer(servers, zone=zone)
        self._consumer = PushConsumer(
            servers, group, topic, self._serve, start=start, threads=threads, zone=zone
        )

    def start(self) -> None:
        """Returns when it has joined its group."""
        self._consumer.start()

    def _serve(self, asked: ReceivedMessage) -> None:
        if not replies.is_request(asked):
            log.warning("message %s is no request: nobody waits for it", asked.message_id)
            return
        try:
            reply = replies.reply_message(asked, self._handler(asked))
        except Exception as error:  # whatever it is, the requester hears of it
            log.warning("request %s failed", asked.message_id, exc_info=error)
            reply = replies.error_reply(asked, error)
        for attempt in itertools.count(1):
            try:
                self._producer.send(asked.properties[replies.REPLY_TO], reply)
            except MqError as error:
                if not is_sent_again(asked, error, attempt):
                    return
            else:
                return

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether the replier was closed within the time. Raises what it was ended with by the
        broker.
        """
        return self._consumer.join(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """No new requests; waits for the handlers at work, so long."""
        try:
            self._consumer.close(timeout_s)
        finally:
            self._producer.close()

    def __enter__(self) -> Self:
        self.start()
        return self
