"""The consumers for programs without asyncio.

The stream is served by the process's background loop. Messages do not pass through it: whoever
polls, and each thread that runs handlers, takes them from what the stream has brought.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from mq.client.closing import Closing
from mq.client.cluster.connection import Connection
from mq.client.consumer.group_session import JOIN_S, LOOK_AT_TROUBLE_S, GroupSession
from mq.client.consumer.options import (
    CACHE_BYTES,
    CACHE_MESSAGES,
    ConsumerOptions,
    Mode,
    Start,
    Subscriptions,
)
from mq.client.consumer.prefetch import InFlight, PolledMessages
from mq.client.consumer.pull import Offsets, PullResult, QueueLike
from mq.client.consumer.pull import PullConsumer as AsyncPullConsumer
from mq.client.consumer.push import check_workers
from mq.client.consumer.retries import FailurePolicy, Nack, RetryDelay
from mq.client.messages import FilterLike, QueueRef, ReceivedMessage
from mq.client.sync import background
from mq.errors import MqError


class Consumer:
    """Joins its group when it is first asked for something. For one thread at a time, but for
    `done`, `commit` and `close`.

    >>> with Consumer(servers, "sync-readers", "greetings", start="earliest") as consumer:
    ...     for message in consumer.poll(timeout_s=10):
    ...         print(message.queue_offset, message.body)
    0 b'hello'
    1 b'world'

    `for message in consumer:` goes on without end. The arguments are those of
    `mq.client.aio.Consumer`.
    """

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Sequence[str],
        group: str,
        subscriptions: Subscriptions,
        *,
        mode: Mode = "clustering",
        start: Start = "latest",
        auto_commit: bool = True,
        cache_messages: int = CACHE_MESSAGES,
        cache_bytes: int = CACHE_BYTES,
        zone: str = "",
        member_id: str | None = None,
        offsets_file: str | Path | None = None,
    ) -> None:
        options = ConsumerOptions(
            group,
            subscriptions,
            mode=mode,
            start=start,
            cache_messages=cache_messages,
            cache_bytes=cache_bytes,
            zone=zone,
            member_id=member_id or "",
            offsets_file=offsets_file,
        )
        self._session = GroupSession(Connection(servers, zone), options)
        self._polled = PolledMessages(self._session.buffer)
        self._failures = FailurePolicy(self._session)
        self._auto_commit = auto_commit
        self._background = background()

    # Messages

    def poll(self, messages_max: int = 32, timeout_s: float | None = 1.0) -> list[ReceivedMessage]:
        """What is there, or comes first within the time. With auto_commit, all that was polled
        before is done. Raises what the broker has ended the consumer with, such as
        SubscriptionMismatch. Unreachable, or NoLeader, as long as the group was never joined and 5
        s of trying were in vain: it goes on trying, so one may poll again.
        """
        self._session.check_open()
        if not self._session.is_started:
            self._background.run(self._session.start())
        if self._auto_commit:
            self._polled.all_done()
        try:
            return self._polled.add(self._take(messages_max, timeout_s))
        except MqError:
            self._session.told()
            raise

    def _take(self, messages_max: int, timeout_s: float | None) -> list[InFlight]:
        """Until the group is joined, why that fails is of more interest than messages."""
        session, wait_take = self._session, self._session.buffer.wait_take
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not session.is_joined:
            session.raise_trouble()
            left_s = deadline_s - time.monotonic()
            found = wait_take(messages_max, max(0.0, min(left_s, LOOK_AT_TROUBLE_S)))
            if found or session.buffer.is_stopped or left_s <= LOOK_AT_TROUBLE_S:
                return found
        left_s = deadline_s - time.monotonic()
        return wait_take(messages_max, None if timeout_s is None else max(0.0, left_s))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Without an end, until the consumer is closed."""
        return self

    def __next__(self) -> ReceivedMessage:
        if self._session.buffer.is_stopped:
            raise StopIteration
        found = self.poll(1, None)
        if not found:
            raise StopIteration
        return found[0]

    def done(self, *messages: ReceivedMessage) -> None:
        """Their work is done, in whichever order. The group's offset follows when all before them
        is done as well.
        """
        self._polled.done(messages)

    def nack(
        self, message: ReceivedMessage, delay_s: float | None = None, reason: str = ""
    ) -> None:
        """Its work has failed: it comes again after so long, or when its attempt is due, here or at
        another member; after too many attempts it is a dead letter. In ordered and broadcast mode
        it comes again here. Done in the background; `commit` waits for it.
        """
        self._failures.failed(self._polled.take_back([message]), Nack(reason, delay_s=delay_s))

    def commit(self, messages: Iterable[ReceivedMessage] | None = None) -> None:
        """These messages are done, or all that were polled; durable when it returns. commit([])
        makes durable what is done already. NotAssigned when another member has a queue by now.
        """
        if messages is None:
            self._polled.all_done()
        else:
            self._polled.done(messages)
        self._background.run(self._session.commit())

    # Places

    @property
    def assignment(self) -> set[QueueRef]:
        """The queues that this member has now; changes when members come and go."""
        return self._session.buffer.assignment

    def seek(self, topic: str, queue_id: int, queue_offset: int, broker_set: str = "") -> None:
        """Goes on there; what was polled of the queue before counts no more. NotAssigned, or
        IllegalOffset behind the end. The broker set may be left out when one only has the topic.
        """
        self._background.run(self._session.joined(JOIN_S))
        ref = self._session.resolve(topic, queue_id, broker_set)
        self._background.run(self._session.seek({ref: queue_offset}))

    def seek_to_earliest(self, topic: str | None = None) -> None:
        """All queues that are assigned of the topics of this consumer, or of one topic."""
        self._seek_to("earliest", topic)

    def seek_to_latest(self, topic: str | None = None) -> None:
        """Behind what is there now."""
        self._seek_to("latest", topic)

    def seek_to_time(self, at_ms: int, topic: str | None = None) -> None:
        """The first message that was stored at this time or later."""
        self._seek_to(at_ms, topic)

    def _seek_to(self, to: Start, topic: str | None) -> None:
        self._background.run(self._session.joined(JOIN_S))
        self._background.run(self._session.seek_to(to, topic))

    def pause(self, *queues: QueueRef | tuple[str, int]) -> None:
        """Nothing of these queues is given out; without any, of all, also those to come. A pair of
        topic and queue id is enough when one broker set only has the topic.
        """
        self._session.buffer.pause(self._refs(queues))

    def resume(self, *queues: QueueRef | tuple[str, int]) -> None:
        self._session.buffer.resume(self._refs(queues))

    def _refs(self, queues: Iterable[QueueRef | tuple[str, int]]) -> list[QueueRef] | None:
        return [self._session.resolve(*one) for one in queues] or None

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._session.decoder.unreadable_messages

    # Ending

    def close(self) -> None:
        """With auto_commit all that was polled is done. Commits, and leaves the group: others go
        on at once. Raises what ended the consumer, if nobody was told.
        """
        self._close(is_orderly=True)

    def _close(self, *, is_orderly: bool) -> None:
        if is_orderly and self._auto_commit:
            self._polled.all_done()
        self._background.run(self._session.close())
        if is_orderly:
            self._session.raise_untold()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """After an exception what was polled last is not done: the group gets it again."""
        self._close(is_orderly=error is None)


class PushConsumer:
    """Calls `handler` for each message, on threads of its own.

    >>> import queue
    >>> seen = queue.Queue()
    >>> with PushConsumer(servers, "sync-mailers", "greetings", seen.put, start="earliest"):
    ...     print(sorted([seen.get(timeout=10).body, seen.get(timeout=10).body]))
    [b'hello', b'world']

    What a handler raises is logged, and the message comes again, see `mq.client.aio.PushConsumer`;
    see `Consumer` for the other arguments.
    """

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Sequence[str],
        group: str,
        subscriptions: Subscriptions,
        handler: Callable[[ReceivedMessage], object],
        *,
        mode: Mode = "clustering",
        start: Start = "latest",
        threads: int = 20,
        retry_delay_s: RetryDelay = None,
        cache_messages: int = CACHE_MESSAGES,
        cache_bytes: int = CACHE_BYTES,
        zone: str = "",
        member_id: str | None = None,
        offsets_file: str | Path | None = None,
    ) -> None:
        options = ConsumerOptions(
            group,
            subscriptions,
            mode=mode,
            start=start,
            cache_messages=cache_messages,
            cache_bytes=cache_bytes,
            zone=zone,
            member_id=member_id or "",
            offsets_file=offsets_file,
        )
        check_workers(threads)
        self._session = GroupSession(Connection(servers, zone), options)
        self._failures = FailurePolicy(self._session, retry_delay_s)
        self._buffer = self._session.buffer
        self._handler = handler
        self._count = threads
        self._workers: list[threading.Thread] = []
        self._is_over = threading.Event()
        self._background = background()

    def start(self) -> None:
        """Returns when it has joined its group. Raises why it could not: Unreachable,
        SubscriptionMismatch, TopicNotFound...
        """
        self._session.check_open()
        try:
            self._background.run(self._session.joined(JOIN_S))
        except MqError:
            self._close()
            raise
        if not self._workers:
            name = f"mq-{self._session.options.group}"
            self._workers = [
                threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
                for number in range(self._count)
            ]
            for worker in self._workers:
                worker.start()

    def _work(self) -> None:
        while True:
            try:
                found = self._buffer.wait_take(1, None)
            except MqError:
                self._is_over.set()
                return
            if not found:
                return
            self._handle(found[0])

    def _handle(self, taken: InFlight) -> None:
        try:
            outcome = self._handler(taken.message)
        except BaseException as error:  # noqa: BLE001 # whatever it is, the message is not done
            self._failures.failed([taken], error)
        else:
            if isinstance(outcome, Nack):
                self._failures.failed([taken], outcome)
            else:
                self._buffer.done([taken])

    @property
    def assignment(self) -> set[QueueRef]:
        return self._buffer.assignment

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._session.decoder.unreadable_messages

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether the consumer was closed within the time. Raises what it was ended with by the
        broker.
        """
        is_over = self._is_over.wait(timeout_s)
        self._session.raise_untold()
        return is_over

    def close(self, timeout_s: float | None = None) -> None:
        """No new messages; waits for the handlers at work, so long, and commits what is done.
        Raises what ended the consumer, if nobody was told.
        """
        self._close(timeout_s)
        self._session.raise_untold()

    def _close(self, timeout_s: float | None = None) -> None:
        if threading.current_thread() in self._workers:
            raise RuntimeError("a handler that closes its consumer would wait for itself")
        self._buffer.stop()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for worker in self._workers:
            worker.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        self._background.run(self._session.close())
        self._is_over.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()
        if error is None:
            self._session.raise_untold()


class PullConsumer(Closing):
    """Reads queues by hand: any place, any number of times, without a membership.

    >>> with PullConsumer(servers) as consumer:
    ...     for topic, queue_id, broker_set in consumer.queues("greetings"):
    ...         result = consumer.pull(topic, queue_id, 0, broker_set=broker_set)
    ...         print(result.status.name, [message.body for message in result.messages])
    FOUND [b'hello', b'world']

    A `group` is needed for commits only, and must have no members then. `read_followers` is that of
    `mq.client.aio.PullConsumer`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str | None = None,
        *,
        zone: str = "",
        read_followers: bool = True,
    ) -> None:
        self._consumer = AsyncPullConsumer(servers, group, zone=zone, read_followers=read_followers)
        self._background = background()

    def queues(self, topic: str) -> list[QueueRef]:
        """That can be read, of all broker sets. TopicNotFound."""
        return self._background.run(self._consumer.queues(topic))

    def pull(  # noqa: PLR0913
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        filter: FilterLike = None,  # noqa: A002
        messages_max: int = 32,
        bytes_max: int = 0,
        wait_ms: int = 0,
        broker_set: str = "",
    ) -> PullResult:
        """Messages from there on; when there are none, waits for some. 0 bytes: 4 MiB, which is
        also the most; one message comes however large it is. Without a broker set: of the one that
        has the topic; IllegalRequest when there are several.
        """
        return self._background.run(
            self._consumer.pull(
                topic,
                queue_id,
                queue_offset,
                filter=filter,
                messages_max=messages_max,
                bytes_max=bytes_max,
                wait_ms=wait_ms,
                broker_set=broker_set,
            )
        )

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._consumer.unreadable_messages

    def find_offsets(self, topic: str, to: Start) -> dict[QueueRef, int]:
        """Of all queues of the topic: "earliest", "latest", or the first at a millisecond."""
        return self._background.run(self._consumer.find_offsets(topic, to))

    def commit(self, offsets: Offsets) -> None:
        """Durable when it returns. GroupNotEmpty when the group has members."""
        self._background.run(self._consumer.commit(offsets))

    def committed(self, queues: Iterable[QueueLike] = ()) -> dict[QueueRef, int]:
        """Of these queues, or all that the group has; those without an offset are left out."""
        return self._background.run(self._consumer.committed(queues))

    def close(self) -> None:
        self._background.run(self._consumer.close())
