"""Python works once a batch, never once a message: the lines that run are counted."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mq
from mq.config import StoreConfig
from mq.store.batch import accept, prepare
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.message_pb2 import Message
from tests.support.naive_wire import plain
from tests.support.stores import append_entry, apply_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PACKAGE = str(Path(mq.__file__).parent)
LIMIT = 4 << 20
KEYS: list[tuple[str, ...]] = [(), ("key-1", "key-2")]


def lines_run(call: Callable[[], object]) -> Counter[str]:
    """The number of runs of each line of our package."""
    lines: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE):
            return None
        if event == "line":
            lines[f"{path.removeprefix(PACKAGE)}:{frame.f_lineno}"] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def batch_of(count: int, keys: tuple[str, ...] = ()) -> bytes:
    """Prepared, of messages that are all alike."""
    return prepare(plain([Message(body=bytes(20), tag="tag", keys=keys)] * count))


def test_the_count_sees_work_for_each_message_and_the_tracer_is_gone_afterwards() -> None:
    before = sys.gettrace()
    one, many = (lines_run(partial(prepare, batch_of(count))).total() for count in (1, 100))
    assert sys.gettrace() is before
    assert many >= one + 99


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("count", [1_000, 20_000])
def test_accepting_a_batch_runs_as_many_lines_as_accepting_a_hundred_messages(
    count: int, keys: tuple[str, ...]
) -> None:
    one, few, hundred, many = (batch_of(each, keys) for each in (1, 9, 100, count))
    accept(one, LIMIT)  # the name of the topic is looked at once
    expected = lines_run(lambda: accept(hundred, LIMIT))
    assert expected.total() > 50
    assert lines_run(lambda: accept(many, LIMIT)) == expected
    # A message alone has a shorter way; a tiny batch is tried for that first.
    assert lines_run(lambda: accept(one, LIMIT)).total() < expected.total()
    assert lines_run(lambda: accept(few, LIMIT)).total() < expected.total() + 15


def varied_batch(count: int) -> bytes:
    """Prepared, of messages that differ in everything: sizes, tags, keys, properties."""
    tags = ("", "paid", "shipped", "returned-by-the-customer")
    messages = [
        Message(
            body=bytes(at % 300),
            tag=tags[at % 4],
            keys=[f"order-{at}", f"customer-{at % 50}"][: at % 3],
            properties={"number": str(at)},
        )
        for at in range(count)
    ]
    return prepare(plain(messages))


def test_accepting_messages_that_differ_runs_lines_that_do_not_depend_on_their_number() -> None:
    few, some, many = varied_batch(40), varied_batch(400), varied_batch(5_000)
    least = varied_batch(30)
    accept(few, LIMIT)  # hashes of tags are kept
    assert lines_run(lambda: accept(few, LIMIT)) == lines_run(lambda: accept(least, LIMIT))
    assert lines_run(lambda: accept(many, LIMIT)) == lines_run(lambda: accept(some, LIMIT))


@contextmanager
def open_store(directory: Path) -> Iterator[Store]:
    node = Identity("cluster", "set", "node")
    config = StoreConfig(flush="async")
    store = Store(RealVfs(), str(directory), config, node, background=False)
    yield store
    store.close()


def append(store: Store, data: bytes) -> None:
    ref = append_entry(store, [accept(data, LIMIT)], now_ms=1_000)
    assert apply_through(store, ref.raft_index)[-1].ref == ref


@pytest.mark.parametrize("keys", KEYS)
def test_appending_1_000_messages_runs_the_lines_of_appending_a_hundred(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    lines = {}
    for count in (1, 100, 1_000, 1_500):
        with open_store(tmp_path / str(count)) as store:
            # Everything is warm, and what grows in steps has no room left: the next step is due for
            # the smallest batch, too.
            append(store, batch_of(4, keys))
            lines[count] = lines_run(partial(append, store, batch_of(count, keys)))
            # Room for the log is made once a mebibyte, however many batches that is.
            assert store.log.end_offset < 1 << 20
            queue = store.queues.get("orders", 3)
            assert queue is not None
            assert queue.end == 4 + count
    # A message alone has a shorter way into its queue.
    assert 150 < lines[1].total() <= lines[100].total()
    assert lines[100] == lines[1_000] == lines[1_500]
