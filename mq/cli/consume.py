"""`mq consume`: prints messages, as a member of a group or without one.

As a member, a message counts as done when it was written out: a crash before that repeats it and
loses nothing. Without a group nothing is committed and nobody notices: all queues are read from a
place on, merged by the time at which messages were stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from mq.cli import loop, output
from mq.cli.options import (
    PLACE_METAVAR,
    SECONDS,
    TIME_HELP,
    Brokers,
    Place,
    PlaceInTime,
    filter_of,
    with_brokers,
    with_filters,
)
from mq.cli.tables import counted, stored_at
from mq.errors import MqError
from mq.names import did_you_mean

if TYPE_CHECKING:
    from mq.client import PullConsumer, QueueRef, ReceivedMessage, aio
    from mq.client.messages import FilterLike

_IDLE_S = 5.0
# A group may take a while to give its queues to a new member: that is no silence.
_JOIN_S = 15.0
_POLL_MESSAGES = 500
_PAGE_MESSAGES = 200
_PAGE_BYTES = 1 << 20
_WAIT_MS = 10_000
_PAGES_WAITING = 16
# A call has tried for seconds, with pauses that grow, before it is made again.
_AGAIN_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What the options ask for."""

    topics: tuple[str, ...]
    place: Place
    wanted: FilterLike
    # None: without an end.
    count: int | None
    # None: until the end of what was there at the start; infinite: for ever.
    idle_s: float | None

    @property
    def is_endless(self) -> bool:
        """A broker that is away is waited for, however long that takes."""
        return self.idle_s == float("inf")

    def left(self, written: int) -> int:
        """How many more to write, as far as one step goes."""
        return _POLL_MESSAGES if self.count is None else min(self.count - written, _POLL_MESSAGES)


class OutagesTold(logging.Handler):
    """Log lines of the client on brokers that are away and come back, as notes to the user."""

    _LOGGER = "mq.client.cluster"

    def emit(self, record: logging.LogRecord) -> None:
        output.note(record.getMessage())

    def __enter__(self) -> None:
        logger = logging.getLogger(self._LOGGER)
        self._level_before = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger(self._LOGGER)
        logger.removeHandler(self)
        logger.setLevel(self._level_before)


# -- output ----------------------------------------------------------------------------------------


class Sink:
    """Where messages go, and how they look there."""

    def __init__(self, file: BinaryIO, *, as_json: bool, with_meta: bool) -> None:
        self._file = file
        self._form = _json_form if as_json else _meta_form if with_meta else _body_form
        if self._form is _body_form and file.isatty():
            self._form = _safe_form
        self.written = 0

    def write(self, messages: Sequence[ReceivedMessage]) -> None:
        """Whoever reads there has them when it returns."""
        self._file.write(b"".join(map(self._form, messages)))
        self._file.flush()
        self.written += len(messages)


def _body_form(message: ReceivedMessage) -> bytes:
    return message.body + b"\n"


def _safe_form(message: ReceivedMessage) -> bytes:
    """For a terminal, line by line."""
    text = message.body.decode(errors="backslashreplace")
    return output.printable_lines(text).encode() + b"\n"


def _json_form(message: ReceivedMessage) -> bytes:
    return output.json_line(output.message_document(message)).encode(errors="surrogatepass")


def _meta_form(message: ReceivedMessage) -> bytes:
    parts = [
        stored_at(message.stored_at_ms),
        f"{message.queue.topic}/{message.queue_id}@{message.queue_offset}",
        message.message_id,
    ]
    if message.tag:
        parts.append(f"tag={message.tag}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    if message.ordering_key:
        parts.append(f"ordering_key={message.ordering_key}")
    if message.properties:
        parts.append(output.pairs(message.properties))
    head = output.printable("  ".join(parts))
    return f"{head}  {output.body_text(message.body)}\n".encode()


# -- as a member of a group ------------------------------------------------------------------------


def consume_as_member(brokers: Brokers, group: str, mode: Any, wish: Wish, sink: Sink) -> None:
    from mq.client import Consumer  # noqa: PLC0415

    _note_missing(brokers, wish.topics)
    subscriptions = dict.fromkeys(wish.topics, wish.wanted)
    idle_s = _IDLE_S if wish.idle_s is None else wish.idle_s
    # However it ends, the consumer commits what is done, and that is what was written.
    with (
        _told_once(),
        Consumer(
            brokers.servers,
            group,
            subscriptions,
            mode=mode,
            start=wish.place,
            auto_commit=False,
        ) as consumer,
    ):
        last_s = time.monotonic()
        has_queues = False
        while left := wish.left(sink.written):
            messages = consumer.poll(left, timeout_s=min(idle_s, 1.0))
            now_s = time.monotonic()
            if messages:
                sink.write(messages)
                consumer.done(*messages)
                last_s = now_s
            elif not has_queues and consumer.assignment:
                has_queues, last_s = True, now_s
            elif now_s - last_s >= (idle_s if has_queues else max(idle_s, _JOIN_S)):
                break
        unreadable = consumer.unreadable_messages
    _note_unreadable(unreadable)


def _note_missing(brokers: Brokers, topics: Sequence[str]) -> None:
    """A group may subscribe to what is not there yet; a person may have mistyped it."""
    with brokers.admin() as admin:
        route = admin.route(topics)
    found = {each.topic for each in route.topics}
    similar = {each.topic: each.similar for each in route.missing}
    for topic in topics:
        if topic not in found:
            hint = did_you_mean(similar.get(topic, ()))
            output.note(f"topic {topic} does not exist yet: waiting for its first message{hint}")


@contextlib.contextmanager
def _told_once() -> Iterator[None]:
    """The client would say of missing topics what is said already."""
    logger = logging.getLogger("mq.client.consumer.topic_locations")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# -- without a group -------------------------------------------------------------------------------


def browse(brokers: Brokers, wish: Wish, sink: Sink) -> None:
    from mq.client import PullConsumer  # noqa: PLC0415

    with PullConsumer(brokers.servers) as consumer:
        positions: dict[QueueRef, int] = {}
        ends: dict[QueueRef, int] = {}
        for topic in wish.topics:
            # In this order: what comes in between is not missed.
            positions |= consumer.find_offsets(topic, wish.place)
            ends |= consumer.find_offsets(topic, "latest")
        reader = Reader(consumer, wish.wanted, positions, is_patient=wish.is_endless)
        for page in _pages(reader.merged(ends), wish.count):
            sink.write(page)
        unreadable = consumer.unreadable_messages
    if wish.idle_s is not None and wish.left(sink.written):
        unreadable += loop.run(_follow(brokers.servers, reader.positions, wish, sink))
    _note_unreadable(unreadable)


class Reader:
    """Reads queues up to their ends, and knows where it is in each."""

    def __init__(
        self,
        consumer: PullConsumer,
        wanted: FilterLike,
        positions: dict[QueueRef, int],
        *,
        is_patient: bool = False,
    ) -> None:
        """`is_patient`: goes on where it is when a broker was away, instead of raising that."""
        self._consumer = consumer
        self._is_patient = is_patient
        self._wanted = wanted
        self.positions = positions

    def merged(self, ends: dict[QueueRef, int]) -> Iterator[ReceivedMessage]:
        """All queues, by the time at which messages were stored."""
        queues = [self._of_queue(queue, ends.get(queue, 0)) for queue in self.positions]
        return heapq.merge(*queues, key=lambda message: message.stored_at_ms)

    def _of_queue(self, queue: QueueRef, end: int) -> Iterator[ReceivedMessage]:
        while (at := self.positions[queue]) < end:
            try:
                result = self._consumer.pull(
                    queue.topic,
                    queue.queue_id,
                    at,
                    broker_set=queue.broker_set,
                    filter=self._wanted,
                    messages_max=_PAGE_MESSAGES,
                    bytes_max=_PAGE_BYTES,
                )
            except MqError as error:
                if not (self._is_patient and error.retryable):
                    raise
                time.sleep(_AGAIN_S)
                continue
            for message in result.messages:
                if message.queue_offset >= end:
                    self.positions[queue] = message.queue_offset
                    return
                self.positions[queue] = message.queue_offset + 1
                yield message
            if result.next_offset <= at:
                return
            self.positions[queue] = result.next_offset


def _pages(
    messages: Iterator[ReceivedMessage], count: int | None
) -> Iterator[list[ReceivedMessage]]:
    """Some at a time: a write for each message would be slow."""
    page: list[ReceivedMessage] = []
    for number, message in enumerate(messages, start=1):
        page.append(message)
        if number == count:
            break
        if len(page) == _POLL_MESSAGES:
            yield page
            page = []
    if page:
        yield page


async def _follow(servers: str, positions: dict[QueueRef, int], wish: Wish, sink: Sink) -> int:
    """What comes from there on, as it comes; how many messages could not be read."""
    from mq.client import aio  # noqa: PLC0415

    arrived: asyncio.Queue[list[ReceivedMessage]] = asyncio.Queue(_PAGES_WAITING)
    async with aio.PullConsumer(servers) as consumer:
        tasks = [
            asyncio.ensure_future(_watch(consumer, queue, at, wish, arrived))
            for queue, at in positions.items()
        ]
        try:
            while left := wish.left(sink.written):
                page = await _next_page(arrived, tasks, wish.idle_s)
                if not page:
                    break
                sink.write(page[:left])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return consumer.unreadable_messages


async def _watch(
    consumer: aio.PullConsumer,
    queue: QueueRef,
    start: int,
    wish: Wish,
    arrived: asyncio.Queue[list[ReceivedMessage]],
) -> None:
    at = start
    while True:
        try:
            result = await consumer.pull(
                queue.topic,
                queue.queue_id,
                at,
                broker_set=queue.broker_set,
                filter=wish.wanted,
                messages_max=_PAGE_MESSAGES,
                wait_ms=_WAIT_MS,
            )
        except MqError as error:
            if not (wish.is_endless and error.retryable):
                raise
            # The place in the queue is kept: nothing is missed, and nothing comes twice.
            await asyncio.sleep(_AGAIN_S)
            continue
        at = result.next_offset
        if result.messages:
            await arrived.put(result.messages)


async def _next_page(
    arrived: asyncio.Queue[list[ReceivedMessage]],
    tasks: Sequence[asyncio.Future[None]],
    idle_s: float | None,
) -> list[ReceivedMessage]:
    """Empty when nothing came in time. Raises what ended one of the tasks."""
    page = asyncio.ensure_future(arrived.get())
    waited: list[asyncio.Future[Any]] = [page, *tasks]
    timeout_s = None if idle_s is None or idle_s == float("inf") else idle_s
    done, _ = await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if page in done:
        return page.result()
    page.cancel()
    for task in done:
        task.result()
    return []


def _note_unreadable(count: int) -> None:
    if count:
        output.note(f"{counted(count, 'message')} could not be read and passed over")


# -- the command -----------------------------------------------------------------------------------


@click.command(short_help="Print messages of topics.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--group", metavar="GROUP", help="Consume as a member of this group.")
@click.option(
    "--from",
    "place",
    metavar=PLACE_METAVAR,
    type=PlaceInTime(),
    default="earliest",
    show_default=True,
    help=f"Where to start; with --group, where it has no offset yet. {TIME_HELP}",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after so many messages.")
@click.option(
    "--follow", "-f", is_flag=True, help="Do not end: wait for more, and for brokers that are away."
)
@click.option(
    "--timeout",
    "idle_s",
    metavar="SECONDS",
    type=SECONDS,
    help=f"End when none came for so long.  [default with --group: {_IDLE_S:g}]",
)
@with_filters
@click.option(
    "--mode",
    type=click.Choice(["clustering", "ordered", "broadcast"]),
    help="How members of the group share messages.  [default: clustering]",
)
@click.option("--meta", is_flag=True, help="Put place, time, tag, keys before each body.")
@click.option(
    "--output",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    default="-",
    help="Write messages there.  [default: stdout]",
)
@with_brokers("", "--jsonl")
def consume(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    *,
    topics: tuple[str, ...],
    group: str | None,
    place: Place,
    count: int | None,
    follow: bool,
    idle_s: float | None,
    tags: str | None,
    sql: str | None,
    mode: str | None,
    meta: bool,
    path: str,
) -> None:
    """Print messages of topics, one body a line.

    Without --group all messages are shown in the order of time, up to those of
    now, and nothing is committed. With --group messages are shared with the
    other members, and are done when they are printed.
    """
    if mode is not None and group is None:
        raise click.UsageError("--mode is how a group shares messages: give --group too")
    if follow and idle_s is not None:
        raise click.UsageError("--follow has no end and --timeout is one: give one of them")
    if meta and brokers.as_json:
        raise click.UsageError("JSON has everything: --meta is for text")
    wish = Wish(topics, place, filter_of(tags, sql), count, float("inf") if follow else idle_s)
    brokers.check()
    try:
        with click.open_file(path, "wb") as file, OutagesTold():
            sink = Sink(cast("BinaryIO", file), as_json=brokers.as_json, with_meta=meta)
            if group is None:
                browse(brokers, wish, sink)
            else:
                consume_as_member(brokers, group, mode or "clustering", wish, sink)
    except BrokenPipeError:
        # Whoever was reading has enough; click ends the command.
        raise
    except OSError as error:
        where = "stdout" if path == "-" else path
        raise click.ClickException(f"cannot write to {where}: {error.strerror}") from error
    if sys.stderr.isatty():
        output.note(counted(sink.written, "message"))
