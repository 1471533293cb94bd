"""The reader that docs/STORAGE.md prints reads what the store writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mq.store.store import Store
from mq.store.vfs import RealVfs
from tests.support.stores import NODE, NOW_MS, SMALL, append, batch, messages_of, put

if TYPE_CHECKING:
    from mq.wire.v1.message_pb2 import Message

ROOT = Path(__file__).resolve().parents[2]
QUEUES = [("orders", 0), ("orders", 9), ("%RETRY%group", 0)]

Line = tuple[str, int, int, int, "Message"]


def program() -> str:
    """The page has one block of Python."""
    [block] = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/STORAGE.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(block)


@pytest.fixture
def written(tmp_path: Path) -> list[Line]:
    """The log below `tmp_path`: several segments, the first ones dropped."""
    store = Store(RealVfs(), str(tmp_path), SMALL, NODE)
    ends = dict.fromkeys(QUEUES, 0)
    lines: list[Line] = []
    for number in range(60):
        batches = []
        for topic, queue_id in QUEUES[: 1 + number % 3]:
            news = messages_of(1 + number % 4, seed=number, tag="t", keys=["k"])
            batches.append(batch(news, topic, queue_id))
            for message in news:
                place = ends[topic, queue_id]
                lines.append((topic, queue_id, place, NOW_MS + number, message))
                ends[topic, queue_id] += 1
        put(store, *batches, now_ms=NOW_MS + number)
    assert len(store.log.segments()) > 3
    assert store.drop_front(2).segments == 2
    # Not synced and not applied, but written: a reader of the files sees it.
    news = messages_of(2, seed=99)
    append(store, batch(news), now_ms=NOW_MS + 99)
    lines += [("orders", 0, ends["orders", 0] + at, NOW_MS + 99, news[at]) for at in range(2)]
    starts = {(queue.topic, queue.queue_id): queue.start for queue in store.queues.extents()}
    store.abandon()
    assert all(starts.values())
    return [line for line in lines if line[2] >= starts[line[0], line[1]]]


def test_the_reader_of_the_page_yields_every_message(tmp_path: Path, written: list[Line]) -> None:
    names: dict[str, Any] = {"__name__": "reader"}
    exec(compile(program(), "docs/STORAGE.md", "exec"), names)  # noqa: S102 - it is our own page
    assert list(names["messages"](str(tmp_path / "commitlog"))) == written


def test_the_page_is_a_program_of_its_own(tmp_path: Path, written: list[Line]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program(), str(tmp_path / "commitlog")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout.splitlines() == [
        " ".join(map(str, (*line[:4], line[4].body))) for line in written
    ]
    assert result.stderr == ""
