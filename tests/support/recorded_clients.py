"""Clients that write down what they do and see in a `History`.

A producer's body is its name and a number; its lanes are its queues and its ordering keys. Errors
of sends are kept, not raised: what is allowed is the test's to say.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mq.client import (
    Consumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from mq.errors import MqError, UnknownMember
from tests.support.history import History, Outcome, Queue, Send, Work
from tests.support.raft_cluster import poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from mq.client.consumer.options import Mode

Answer = TypeVar("Answer")

# A killed broker comes back within that, also on a machine that stands still for a minute.
PATIENCE_S = 150.0


class RecordedProducer:
    """A producer of one topic."""

    def __init__(
        self, history: History, servers: str, name: str, topic: str, **settings: Any
    ) -> None:
        self.errors: list[MqError] = []
        self.duplicates = 0
        self._history = history
        self._name = name
        self._topic = topic
        self._numbers = itertools.count()
        self._may = {
            "may_repeat": not settings.get("idempotent", True),
            "may_vanish": settings.get("ack") == "leader",
        }
        self._producer = Producer(servers, **{"timeout_s": PATIENCE_S, **settings})

    def send(self, *, queue_id: int | None = None, key: str = "") -> None:
        """Returns when it has an answer."""
        send, message = self._begin(queue_id, key)
        try:
            self._acknowledged(send, self._producer.send(self._topic, message, queue_id=queue_id))
        except MqError as error:
            self._failed(send, error)

    def send_batch(self, count: int, *, queue_id: int | None = None, key: str = "") -> None:
        begun = [self._begin(queue_id, key) for _ in range(count)]
        try:
            results = self._producer.send_batch(
                self._topic, [message for _, message in begun], queue_id=queue_id
            )
        except MqError as error:
            for send, _ in begun:
                self._failed(send, error)
        else:
            for (send, _), result in zip(begun, results, strict=True):
                self._acknowledged(send, result)

    def send_async(self, *, queue_id: int | None = None, key: str = "") -> Future[SendResult]:
        send, message = self._begin(queue_id, key)
        future = self._producer.send_async(self._topic, message, queue_id=queue_id)
        future.add_done_callback(lambda done: self._answered(send, done))
        return future

    def _answered(self, send: Send, done: Future[SendResult]) -> None:
        error = done.exception()
        if isinstance(error, MqError):
            self._failed(send, error)
        else:
            self._acknowledged(send, done.result())

    def _begin(self, queue_id: int | None, key: str) -> tuple[Send, Message]:
        body = b"%s.%d" % (self._name.encode(), next(self._numbers))
        lane = ""
        if queue_id is not None or key:
            lane = f"{self._name}:{key or queue_id}"
        message = Message(body, ordering_key=key if queue_id is None else "")
        return self._history.sending(lane, body, **self._may), message

    def _acknowledged(self, send: Send, result: SendResult) -> None:
        self.duplicates += result.is_duplicate
        queue = Queue(result.topic, result.queue_id)
        self._history.acknowledged(send, queue, result.queue_offset, result.message_id)

    def _failed(self, send: Send, error: MqError) -> None:
        self.errors.append(error)
        self._history.failed(send, repr(error), is_sure=not error.retryable)

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RecordedConsumer:
    """Polls, and commits by hand. `member` is also its member id. Only one that is alone in its
    group knows that all it has polled is committed when a commit returns.
    """

    def __init__(
        self,
        history: History,
        servers: str,
        group: str,
        topic: str,
        member: str,
        *,
        mode: Mode = "clustering",
        is_alone: bool = True,
    ) -> None:
        self.errors: list[MqError] = []
        self._history = history
        self._group = group
        self._member = member
        self._is_alone = is_alone
        self._open: list[Work] = []
        self._consumer = Consumer(
            servers,
            group,
            topic,
            mode=mode,
            start="earliest",
            auto_commit=False,
            member_id=member,
        )

    def poll(self, max_messages: int = 32, timeout_s: float = 0.2) -> int:
        """Returns the number of messages polled."""
        messages = self._consumer.poll(max_messages, timeout_s)
        self._open += [self._history.took(self._group, self._member, one) for one in messages]
        return len(messages)

    def take(self, count: int) -> None:
        """Polls until so many came."""
        left = count
        deadline = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, f"{left} of {count} messages did not come"
            left -= self.poll(min(left, 32))

    def commit(self) -> None:
        """All that was polled."""
        works, self._open = self._open, []
        for work in works:
            self._history.finished(work)
        try:
            patiently(self._consumer.commit)
        except MqError as error:
            self.errors.append(error)
            self._history.note(f"{self._member} of {self._group} could not commit: {error!r}")
            return
        if self._is_alone:
            offsets: dict[Queue, int] = {}
            for work in works:
                queue, queue_offset = work.place
                offsets[queue] = max(offsets.get(queue, 0), queue_offset + 1)
            self._history.committed(self._group, offsets)

    def close(self) -> None:
        """Messages polled and not committed come again."""
        works, self._open = self._open, []
        for work in works:
            self._history.dropped(work)
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def pushing(
    history: History,
    servers: str,
    group: str,
    topic: str,
    member: str,
    work_on: Callable[[ReceivedMessage], object] = lambda _: None,
    *,
    mode: Mode = "clustering",
) -> Iterator[PushConsumer]:
    """A push consumer; `work_on` is what its handlers do."""

    def handle(message: ReceivedMessage) -> None:
        work = history.took(group, member, message)
        try:
            work_on(message)
        except BaseException:
            history.dropped(work)
            raise
        history.finished(work)

    def begin() -> PushConsumer:
        consumer = PushConsumer(
            servers, group, topic, handle, mode=mode, start="earliest", threads=6, member_id=member
        )
        consumer.start()
        return consumer

    with patiently(begin) as consumer:
        yield consumer


def ask_offsets(history: History, servers: str, group: str) -> None:
    """The offsets of the group now, as the broker says."""
    floors = history.floors(group)
    with PullConsumer(servers, group) as consumer:
        found = patiently(consumer.committed)
    history.queried(group, floors, {Queue(*ref[:2]): at for ref, at in found.items()})


def drain(history: History, servers: str, topic: str) -> dict[Queue, int]:
    """Everything that the topic holds; the ends of its queues."""
    ends: dict[Queue, int] = {}
    with PullConsumer(servers) as consumer:
        for ref in patiently(lambda: consumer.queues(topic)):
            queue = Queue(*ref[:2])
            found = _read(consumer, queue)
            ends[queue] = len(found)
            history.stored(queue, found)
    return ends


def _read(consumer: PullConsumer, queue: Queue) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []

    def pull() -> list[ReceivedMessage]:
        at = found[-1].queue_offset + 1 if found else 0
        return consumer.pull(queue.topic, queue.queue_id, at, max_messages=1000).messages

    while messages := patiently(pull):
        found += messages
    return found


def wait_read(history: History, group: str, ends: dict[Queue, int]) -> None:
    """Until the group has seen all before these ends."""

    def is_read() -> bool:
        return not any(history.unseen(group, queue, end) for queue, end in ends.items())

    poll(is_read, f"{group} sees everything before {ends}", PATIENCE_S)


def read_to_end(
    history: History,
    servers: str,
    group: str,
    topic: str,
    ends: dict[Queue, int],
    *,
    mode: Mode = "clustering",
) -> None:
    """One more consumer reads what is left, until the group has committed everything."""

    def is_through() -> bool:
        last.poll()
        last.commit()
        ask_offsets(history, servers, group)
        return history.floors(group) == ends

    with RecordedConsumer(history, servers, group, topic, "last", mode=mode) as last:
        poll(is_through, f"{group} has committed {ends}", PATIENCE_S)


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Calls that give up after some seconds, on a machine that may need longer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except MqError as error:
            # A consumer is unknown until its stream is there again.
            is_passing = error.retryable or isinstance(error, UnknownMember)
            if not is_passing or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def told_with(history: History, logs: Callable[[], str], file: Path) -> Iterator[None]:
    """Whatever fails is shown with the history and the logs of the brokers; the file has all."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"{history.report()}\n{logs()}\nthe whole history is in {file}")
        file.write_text(history.text())
        raise


class Load:
    """Works that are done again and again, each on a thread of its own, until the end of the block.
    What one of them raises fails the test.
    """

    def __init__(self, history: History, *works: Callable[[], object]) -> None:
        self._history = history
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def _run(self, work: Callable[[], object]) -> None:
        try:
            while not self._is_over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            self._failures.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def wait_for_more(self, count: int) -> None:
        """Until so many more are acknowledged than now, and each group has seen as many."""
        targets = [one + count for one in self._counts()]
        poll(
            lambda: self._failures or all(map(operator.ge, self._counts(), targets)),
            f"{count} more acknowledged and seen",
            PATIENCE_S,
        )

    def _counts(self) -> list[int]:
        history = self._history
        seen = [history.deliveries(group) for group in history.groups]
        return [history.count(Outcome.ACKNOWLEDGED), *seen]


def sending_one_by_one(producer: RecordedProducer, queues: int, seed: int) -> Callable[[], None]:
    """A work for `Load`: each send waits for its answer."""
    rng = random.Random(seed)

    def work() -> None:
        if rng.random() < 0.3:
            producer.send_batch(rng.randint(2, 10), queue_id=rng.randrange(queues))
        else:
            producer.send(key=f"k{rng.randrange(5)}")

    return work


def sending_many(producer: RecordedProducer, queues: int, seed: int) -> Callable[[], None]:
    """A work for `Load`: no send waits, and some hundred a second are enough."""
    rng = random.Random(seed)

    def work() -> None:
        for _ in range(rng.randint(1, 10)):
            producer.send_async(queue_id=rng.choice([*range(queues), None]))
        if rng.random() < 0.02:
            producer.flush()
        time.sleep(0.003)

    return work


def polling(consumer: RecordedConsumer, seed: int) -> Callable[[], None]:
    """A work for `Load`."""
    rng = random.Random(seed)

    def work() -> None:
        consumer.poll(rng.randint(1, 100))
        if rng.random() < 0.3:
            consumer.commit()

    return work
