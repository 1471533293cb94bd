"""`mq consume --format arrow|parquet`: messages as columns, into a file.

Rows come batch by batch and not message by message: without a group queue by queue, and not in the
order of time. A file has a valid end when the command ends, also by Ctrl-C. So messages of a group
are done when the file is complete; those that go to a pipe, when they are written.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from typing import TYPE_CHECKING, Self

import click

from mq.cli import output
from mq.cli.consume import ConsumeOptions, consume_as_member, repeated
from mq.cli.options import Brokers

if TYPE_CHECKING:
    from mq.client import Consumer, PullConsumer, QueueRef
    from mq.client.arrow.files import TableFile

# New messages are looked for so often.
_LOOK_S = 0.3
_POLL_ROWS = 1 << 16


class Interruption:
    """Ctrl-C and SIGTERM as a flag: they would leave half a batch in the file. A second one ends
    the command at once.
    """

    def __init__(self) -> None:
        self.is_wanted = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def _note(self, number: int, _: object) -> None:
        self.is_wanted = True
        signal.signal(number, signal.default_int_handler)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.is_wanted and kind is None:
            raise KeyboardInterrupt


def write_columns(
    brokers: Brokers, group: str | None, mode: str, options: ConsumeOptions, path: str, kind: str
) -> int:
    """Returns the number of rows."""
    if path == "-" and sys.stdout.isatty():
        raise click.UsageError(f"--format {kind} is not for a terminal: give --output FILE")
    with _table_file(path, kind) as file, Interruption() as interruption:
        if group is None:
            browse(brokers, options, file, interruption)
        else:
            to = TableOutput(options, file, interruption, is_pipe=path == "-")
            consume_as_member(brokers, group, mode, options, to)
    return file.rows


def _table_file(path: str, kind: str) -> TableFile:
    """Raises ClickException if pyarrow is missing."""
    try:
        from mq.client.arrow.columns import message_schema  # noqa: PLC0415 # an extra
        from mq.client.arrow.files import TableFile  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    schema = message_schema(with_properties=True)
    if path != "-":
        return TableFile(path, "arrow" if kind == "arrow" else "parquet", schema)
    return TableFile(sys.stdout.buffer, "arrow-stream" if kind == "arrow" else "parquet", schema)


# -- as a member of a group ------------------------------------------------------------------------


class TableOutput:
    """Writes columns. Messages are done when the file is complete; in a pipe, at once.

    The broker delivers no more than `cache_messages` and `cache_bytes` that are not done. So a file
    is full at half of that, and the command ends.
    """

    cache_messages, cache_bytes = 500_000, 256 << 20

    def __init__(
        self,
        options: ConsumeOptions,
        file: TableFile,
        interruption: Interruption,
        *,
        is_pipe: bool,
    ) -> None:
        self._count = sys.maxsize if options.count is None else options.count
        self._file = file
        self._interruption = interruption
        self._is_pipe = is_pipe
        self._bytes = 0

    def take(self, consumer: Consumer, timeout_s: float) -> int | None:
        left = min(_POLL_ROWS, self._count - self._file.rows)
        if self._interruption.is_wanted or not left or self._is_full:
            return None
        batch = consumer.poll_arrow(left, timeout_s, with_properties=True)
        if batch.num_rows:
            self._file.write(batch)
            self._bytes += batch.nbytes
            if self._is_pipe:
                consumer.commit()
        return int(batch.num_rows)

    @property
    def _is_full(self) -> bool:
        return not self._is_pipe and (
            2 * self._file.rows >= self.cache_messages or 2 * self._bytes >= self.cache_bytes
        )

    def finish(self, consumer: Consumer) -> None:
        self._file.close()
        consumer.commit()
        if self._is_full:
            output.note("the file is full: the next command of the group goes on")


# -- without a group -------------------------------------------------------------------------------


def browse(
    brokers: Brokers, options: ConsumeOptions, file: TableFile, interruption: Interruption
) -> None:
    from mq.client import PullConsumer  # noqa: PLC0415

    with PullConsumer(brokers.servers, **brokers.security) as consumer:
        browsing = _Browsing(consumer, options, file, interruption)
        idle_s = options.idle_s or 0.0
        last_s = time.monotonic()
        while not browsing.is_over():
            if browsing.read_new():
                last_s = time.monotonic()
            if time.monotonic() - last_s >= idle_s:
                break
            time.sleep(min(_LOOK_S, idle_s))


class _Browsing:
    """Knows its position in each queue: after an outage no row is missed, and none comes twice."""

    def __init__(
        self,
        consumer: PullConsumer,
        options: ConsumeOptions,
        file: TableFile,
        interruption: Interruption,
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._file = file
        self._interruption = interruption
        self._positions: dict[QueueRef, int] = {}
        for topic in options.topics:
            repeated(functools.partial(self._find_start, topic), options)

    def is_over(self) -> bool:
        return self._interruption.is_wanted or self._left == 0

    @property
    def _left(self) -> int:
        count = self._options.count
        return sys.maxsize if count is None else count - self._file.rows

    def read_new(self) -> bool:
        """Reads the messages that are there. Returns False if there are none."""
        before = dict(self._positions)
        for topic in self._options.topics:
            repeated(functools.partial(self._read, topic), self._options)
        return before != self._positions

    def _find_start(self, topic: str) -> None:
        if not self.is_over():
            self._positions |= self._consumer.find_offsets(topic, self._options.place)

    def _read(self, topic: str) -> None:
        from mq.client import QueueRef  # noqa: PLC0415

        if self.is_over():
            return
        ends = self._consumer.find_offsets(topic, "latest")
        # Queues that were added since the start are read from their first message on.
        starts = {ref: self._positions.setdefault(ref, 0) for ref in ends}
        if starts == ends:
            return
        reader = self._consumer.read_arrow(
            topic, start=starts, end=ends, filter=self._options.wanted, with_properties=True
        )
        for batch in reader:
            self._file.write(batch.slice(0, self._left))
            # A batch is of one queue.
            queue_id, broker_set = batch["queue_id"][0].as_py(), batch["broker_set"][0].as_py()
            last = batch["queue_offset"][-1].as_py()
            self._positions[QueueRef(topic, queue_id, broker_set)] = last + 1
            if self.is_over():
                return
        self._positions |= ends
