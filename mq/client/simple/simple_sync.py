"""The consumer that receives and acknowledges message by message, for programs without asyncio."""

from __future__ import annotations

from collections.abc import Sequence

from mq.client.closing import Closing
from mq.client.consumer.options import Start, Subscriptions
from mq.client.messages import ReceivedMessage
from mq.client.simple.consumer import Messages
from mq.client.simple.consumer import SimpleConsumer as AsyncSimpleConsumer
from mq.client.sync import background


class SimpleConsumer(Closing):
    """Receives when it is asked to; there is nothing to join. For any number of threads.

    >>> with SimpleConsumer(servers, "sync-workers", "greetings", start="earliest") as consumer:
    ...     for message in consumer.receive(wait_s=10):
    ...         print(message.attempt, message.body)
    ...         consumer.ack(message)
    1 b'hello'
    1 b'world'

    The arguments are those of `mq.client.aio.SimpleConsumer`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        subscriptions: Subscriptions,
        *,
        start: Start = "latest",
        is_ordered: bool = False,
        zone: str = "",
        member_id: str | None = None,
    ) -> None:
        self._consumer = AsyncSimpleConsumer(
            servers,
            group,
            subscriptions,
            start=start,
            is_ordered=is_ordered,
            zone=zone,
            member_id=member_id,
        )
        self._background = background()

    def receive(
        self, max_messages: int = 32, wait_s: float = 20.0, invisible_s: float = 60.0
    ) -> list[ReceivedMessage]:
        """Messages that are this member's for the invisible time, 10 s to 12 h; when there are
        none, waits for the first so long. Raises SubscriptionMismatch and what else the broker
        refuses; Unreachable when no broker set answers. One that does not answer is no reason to
        wait for the others.
        """
        return self._background.run(self._consumer.receive(max_messages, wait_s, invisible_s))

    def ack(self, messages: Messages) -> None:
        """Their work is done, durably when it returns: they do not come again.

        IllegalHandle: some of them are not this member's any more, because their time was over and
        somebody else was given them, or they were acknowledged before; the others are done.
        """
        self._background.run(self._consumer.ack(messages))

    def nack(self, messages: Messages, delay_s: float | None = None, reason: str = "") -> None:
        """Their work has failed: they come again after so long, here or at another member, or when
        their attempt is due: 10 s after the first one, 30 s after the second, and so on. After too
        many attempts they are dead letters, with the reason. IllegalHandle as `ack`.
        """
        self._background.run(self._consumer.nack(messages, delay_s, reason))

    def change_invisible(self, messages: Messages, invisible_s: float) -> None:
        """They are this member's for so long from now on, 10 s to 12 h. IllegalHandle as `ack`."""
        self._background.run(self._consumer.change_invisible(messages, invisible_s))

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._consumer.unreadable_messages

    def close(self) -> None:
        """Leaves the group. What was received and not acknowledged comes again when its time is
        over.
        """
        self._background.run(self._consumer.close())
