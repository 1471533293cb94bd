"""`mq consume`: prints messages, as a member of a group or without one.

As a member, a message counts as done when it was written out: a crash before that repeats it and
loses nothing. Without a group nothing is committed and no consumer is affected: all queues are read
from a place on, merged by the time at which messages were stored.

With --follow the command never ends by itself: calls that fail because no broker answers are
repeated, from the first one on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import heapq
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, cast

import click

from mq.cli import loop, output
from mq.cli.completion import complete_group, complete_topic
from mq.cli.message_format import with_template
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
from mq.cli.sink import Destination, Sink
from mq.cli.tables import counted
from mq.errors import MqError, Unreachable
from mq.names import did_you_mean

if TYPE_CHECKING:
    from mq.client import Consumer, PullResult, QueueRef, ReceivedMessage, aio
    from mq.client.messages import FilterLike
    from mq.wire.v1.cluster_pb2 import RouteResponse

_IDLE_S = 5.0
# A group may take a while to give its queues to a new member: that is no silence.
_JOIN_S = 15.0
_POLL_MESSAGES = 500
_PAGE_MESSAGES = 200
_PAGE_BYTES = 1 << 20
_WAIT_MS = 10_000
_PAGES_WAITING = 16
# A call has tried for seconds, with a back-off, before it is repeated.
_REPEAT_S = 1.0
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The options of the command."""

    topics: tuple[str, ...]
    place: Place
    wanted: FilterLike
    # None: without an end.
    count: int | None
    # None: until the end of what was there at the start; infinite: for ever.
    idle_s: float | None

    @property
    def is_endless(self) -> bool:
        return self.idle_s == float("inf")

    def outlasts(self, error: MqError) -> bool:
        """Whether the call that failed is to be repeated, however long that takes."""
        return self.is_endless and error.retryable

    def left(self, written: int) -> int:
        """The number of messages still to write in one step."""
        return _POLL_MESSAGES if self.count is None else min(self.count - written, _POLL_MESSAGES)


class OutageNotes(logging.Handler):
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


# -- as a member of a group ------------------------------------------------------------------------


class Output(Protocol):
    """The destination of the messages of a member."""

    # The most messages that are taken, or fetched ahead, and not done.
    cache_messages: int
    cache_bytes: int

    def take(self, consumer: Consumer, timeout_s: float) -> int | None:
        """Polls and writes messages. Returns their number, or None when there are enough."""

    def finish(self, consumer: Consumer) -> None:
        """Called once, when no more messages are taken."""


class Printer:
    """Prints messages, which are done then."""

    cache_messages, cache_bytes = 1_000, 100 << 20

    def __init__(self, options: ConsumeOptions, sink: Sink) -> None:
        self._options = options
        self._sink = sink

    def take(self, consumer: Consumer, timeout_s: float) -> int | None:
        left = self._options.left(self._sink.written)
        if not left:
            return None
        messages = consumer.poll(left, timeout_s=timeout_s)
        if messages:
            self._sink.write(messages)
            consumer.done(*messages)
        return len(messages)

    def finish(self, consumer: Consumer) -> None:
        """The consumer commits when it is closed."""


def consume_as_member(
    brokers: Brokers, group: str, mode: Any, options: ConsumeOptions, to: Output
) -> None:
    from mq.client import Consumer  # noqa: PLC0415

    _note_missing(
        repeated(functools.partial(_route, brokers, options.topics), options), options.topics
    )
    subscriptions = dict.fromkeys(options.topics, options.wanted)
    idle_s = _IDLE_S if options.idle_s is None else options.idle_s
    # However it ends, the consumer commits what is done, and that is what was written.
    with (
        _quiet_missing_topics(),
        Consumer(
            brokers.servers,
            group,
            subscriptions,
            mode=mode,
            start=options.place,
            auto_commit=False,
            cache_messages=to.cache_messages,
            cache_bytes=to.cache_bytes,
            **brokers.security,
        ) as consumer,
    ):
        last_s = time.monotonic()
        has_queues = False
        take = functools.partial(to.take, consumer, min(idle_s, 1.0))
        while (count := repeated(take, options)) is not None:
            now_s = time.monotonic()
            if count:
                last_s = now_s
            elif not has_queues and consumer.assignment:
                has_queues, last_s = True, now_s
            elif now_s - last_s >= (idle_s if has_queues else max(idle_s, _JOIN_S)):
                break
        to.finish(consumer)
        unreadable = consumer.unreadable_messages
    _note_unreadable(unreadable)


def repeated(call: Callable[[], T], options: ConsumeOptions) -> T:
    """Calls until it succeeds, if the command is to outlast an outage."""
    while True:
        try:
            return call()
        except MqError as error:
            if not options.outlasts(error):
                raise
        time.sleep(_REPEAT_S)


def _route(brokers: Brokers, topics: Sequence[str]) -> RouteResponse:
    with brokers.admin() as admin:
        return admin.route(topics)


def _note_missing(route: RouteResponse, topics: Sequence[str]) -> None:
    """A group may subscribe to a topic that does not exist yet; a person may have mistyped it."""
    found = {each.topic for each in route.topics}
    similar = {each.topic: each.similar for each in route.missing}
    for topic in topics:
        if topic not in found:
            hint = did_you_mean(similar.get(topic, ()))
            output.note(f"topic {topic} does not exist yet: waiting for its first message{hint}")


@contextlib.contextmanager
def _quiet_missing_topics() -> Iterator[None]:
    """The client would repeat what `_note_missing` has said."""
    logger = logging.getLogger("mq.client.consumer.subscribed_sets")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# -- without a group -------------------------------------------------------------------------------


def browse(brokers: Brokers, options: ConsumeOptions, sink: Destination) -> None:
    _note_unreadable(loop.run(_browse(brokers, options, sink)))


async def _browse(brokers: Brokers, options: ConsumeOptions, sink: Destination) -> int:
    """Returns how many messages could not be read."""
    from mq.client import aio  # noqa: PLC0415

    async with aio.PullConsumer(brokers.servers, **brokers.security) as consumer:
        reader = Reader(consumer, options)
        page: list[ReceivedMessage] = []
        async with contextlib.aclosing(reader.backlog()) as backlog:
            async for message in backlog:
                page.append(message)
                # A write for each message would be slow.
                if len(page) == options.left(sink.written):
                    sink.write(page)
                    page = []
                    if not options.left(sink.written):
                        break
        if page:
            sink.write(page)
        if options.idle_s is not None and options.left(sink.written):
            await _follow(reader, options, sink)
        return consumer.unreadable_messages


class Reader:
    """Reads queues, and knows where it is in each: after an outage no message is missed, and none
    comes twice.
    """

    def __init__(self, consumer: aio.PullConsumer, options: ConsumeOptions) -> None:
        self._consumer = consumer
        self._options = options
        self.positions: dict[QueueRef, int] = {}

    async def backlog(self) -> AsyncGenerator[ReceivedMessage, None]:
        """The messages that are there now, of all queues, by the time at which they were stored."""
        ends = await self._start()
        heads: list[tuple[int, int, ReceivedMessage, AsyncIterator[ReceivedMessage]]] = []
        for number, queue in enumerate(self.positions):
            messages = self._until(queue, ends.get(queue, 0))
            if (first := await anext(messages, None)) is not None:
                heads.append((first.stored_at_ms, number, first, messages))
        heapq.heapify(heads)
        while heads:
            _, number, message, messages = heads[0]
            yield message
            if (following := await anext(messages, None)) is not None:
                heapq.heapreplace(heads, (following.stored_at_ms, number, following, messages))
            else:
                heapq.heappop(heads)

    async def _start(self) -> dict[QueueRef, int]:
        """Finds the positions to start at. Returns the ends of the queues."""
        find = self._consumer.find_offsets
        ends: dict[QueueRef, int] = {}
        for topic in self._options.topics:
            # In this order: a message that arrives in between is not missed.
            self.positions |= await self._repeated(
                functools.partial(find, topic, self._options.place)
            )
            ends |= await self._repeated(functools.partial(find, topic, "latest"))
        return ends

    async def _until(self, queue: QueueRef, end: int) -> AsyncIterator[ReceivedMessage]:
        while (at := self.positions[queue]) < end:
            result = await self._pull(queue)
            for message in result.messages:
                if message.queue_offset >= end:
                    self.positions[queue] = message.queue_offset
                    return
                self.positions[queue] = message.queue_offset + 1
                yield message
            if result.next_offset <= at:
                return
            self.positions[queue] = result.next_offset

    async def watch(self, queue: QueueRef, arrived: asyncio.Queue[list[ReceivedMessage]]) -> None:
        """Puts messages there as they come, without an end."""
        while True:
            result = await self._pull(queue, wait_ms=_WAIT_MS)
            self.positions[queue] = result.next_offset
            if result.messages:
                await arrived.put(result.messages)

    async def _pull(self, queue: QueueRef, wait_ms: int = 0) -> PullResult:
        pull = functools.partial(
            self._consumer.pull,
            queue.topic,
            queue.queue_id,
            self.positions[queue],
            broker_set=queue.broker_set,
            filter=self._options.wanted,
            max_messages=_PAGE_MESSAGES,
            max_bytes=_PAGE_BYTES,
            wait_ms=wait_ms,
        )
        return await self._repeated(pull)

    async def _repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except MqError as error:
                if not self._options.outlasts(error):
                    raise
            await asyncio.sleep(_REPEAT_S)


async def _follow(reader: Reader, options: ConsumeOptions, sink: Destination) -> None:
    """Writes messages as they come."""
    arrived: asyncio.Queue[list[ReceivedMessage]] = asyncio.Queue(_PAGES_WAITING)
    tasks = [asyncio.ensure_future(reader.watch(queue, arrived)) for queue in reader.positions]
    try:
        while left := options.left(sink.written):
            page = await _next_page(arrived, tasks, options.idle_s)
            if not page:
                break
            sink.write(page[:left])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next_page(
    arrived: asyncio.Queue[list[ReceivedMessage]],
    tasks: Sequence[asyncio.Future[None]],
    idle_s: float | None,
) -> list[ReceivedMessage]:
    """Empty when nothing came in time. Raises the error that ended one of the tasks."""
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


def _await_broker(brokers: Brokers) -> None:
    is_told = False
    while True:
        try:
            brokers.check()
        except Unreachable as error:
            if not is_told:
                output.note(f"{error}; still trying")
            is_told = True
            time.sleep(_REPEAT_S)
        else:
            break
    if is_told:
        output.note("a broker answers")


def print_messages(
    brokers: Brokers, group: str | None, mode: str, options: ConsumeOptions, sink: Sink
) -> int:
    """Returns the number of messages."""
    if group is None:
        browse(brokers, options, sink)
    else:
        consume_as_member(brokers, group, mode, options, Printer(options, sink))
    return sink.written


# -- the command -----------------------------------------------------------------------------------


def _chosen_format(
    kind: str | None, template: str | None, *, is_json: bool, with_meta: bool
) -> str:
    if is_json and kind not in (None, "json"):
        raise click.UsageError(f"--json and --format {kind} are two formats: give one")
    if template is not None and (is_json or with_meta or kind not in (None, "text")):
        raise click.UsageError("-f is a form of its own: leave out --json, --meta and --format")
    kind = kind or ("json" if is_json else "text")
    if with_meta and kind != "text":
        raise click.UsageError(f"--format {kind} has everything: --meta is for text")
    return kind


@click.command(short_help="Print messages of topics.")
@click.argument(
    "topics", metavar="TOPIC...", shell_complete=complete_topic, nargs=-1, required=True
)
@click.option(
    "--group",
    metavar="GROUP",
    shell_complete=complete_group,
    help="Consume as a member of this group.",
)
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
    "--follow", "-F", is_flag=True, help="Do not end: wait for more, and for brokers that are away."
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
@with_template
@click.option(
    "--format",
    "kind",
    type=click.Choice(["text", "json", "arrow", "parquet"]),
    help="One body a line, JSON a line, or a file of columns.  [default: text]",
)
@click.option(
    "--output",
    "-o",
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
    template: str | None,
    kind: str | None,
    path: str,
) -> None:
    """Print messages of topics, one body a line.

    Without --group all messages are shown in the order of time, up to those of
    now, and nothing is committed. With --group messages are shared with the
    other members, and are done when they are printed.

    --format arrow writes an Arrow IPC file (Feather), or an IPC stream to a pipe,
    --format parquet a Parquet file; both need mq[arrow]. Rows come queue by queue.
    The file is complete when the command ends, also by Ctrl-C, and messages of a
    group are done then.
    """
    if mode is not None and group is None:
        raise click.UsageError("--mode is how a group shares messages: give --group too")
    if follow and idle_s is not None:
        raise click.UsageError("--follow has no end and --timeout is one: give one of them")
    kind = _chosen_format(kind, template, is_json=brokers.as_json, with_meta=meta)
    options = ConsumeOptions(
        topics, place, filter_of(tags, sql), count, float("inf") if follow else idle_s
    )
    if follow:
        _await_broker(brokers)
    else:
        brokers.check()
    try:
        with OutageNotes():
            if kind in ("arrow", "parquet"):
                from mq.cli.consume_columns import write_columns  # noqa: PLC0415 # rarely needed

                written = write_columns(brokers, group, mode or "clustering", options, path, kind)
            else:
                with click.open_file(path, "wb") as file:
                    is_json = kind == "json"
                    opened = cast("BinaryIO", file)
                    sink = Sink(opened, as_json=is_json, with_meta=meta, template=template)
                    written = print_messages(brokers, group, mode or "clustering", options, sink)
    except BrokenPipeError:
        # The reader of the pipe has closed it; click ends the command.
        raise
    except OSError as error:
        where = "stdout" if path == "-" else path
        raise click.ClickException(f"cannot write to {where}: {error.strerror or error}") from error
    if sys.stderr.isatty():
        output.note(counted(written, "message"))
