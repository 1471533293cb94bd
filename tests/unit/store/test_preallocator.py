"""Space ahead of the end: a full disk shows before a byte is written, and no byte is lost."""

from __future__ import annotations

import errno
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.store.preallocator import Preallocator
from tests.support.logs import disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.faulty_vfs import FaultyFile, FaultyVfs

PATH = "/data/a"
LIMIT = 100_000

both_ways = pytest.mark.parametrize("zeros", [False, True], ids=["reserved", "zeroed"])


class LateExecutor(Executor):
    """Does the work when the test says so, or when it is waited for: no thread, no race."""

    def __init__(self) -> None:
        self.tasks: list[LateTask] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = LateTask(lambda: fn(*args, **kwargs))
        self.tasks.append(task)
        return task


class LateTask(Future[Any]):
    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        if not self.done():
            try:
                self.set_result(self._work())
            except OSError as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)


def open_room(
    vfs: FaultyVfs,
    *,
    zeros: bool,
    ready: int = 0,
    step: int = 1000,
    executor: Executor | None = None,
) -> tuple[FaultyFile, Preallocator]:
    file = vfs.open(PATH, create=True)
    return file, Preallocator(file, ready, step, zeros=zeros, executor=executor)


@both_ways
def test_ensured_room_can_be_written_on_a_full_disk(zeros: bool) -> None:
    vfs = disk()
    file, room = open_room(vfs, zeros=zeros)
    room.ensure(500, LIMIT)
    vfs.capacity_bytes = 0
    file.pwritev([b"x" * 500], 0)
    assert file.pread(500, 0) == b"x" * 500


@both_ways
def test_no_more_than_a_step_is_prepared_in_the_foreground(zeros: bool) -> None:
    file, room = open_room(disk(), zeros=zeros, step=1000)
    room.ensure(10, LIMIT)
    assert file.size() == 1000
    room.ensure(1000, LIMIT)
    assert file.size() == 1000
    room.ensure(5000, LIMIT)
    assert file.size() == 5000


@both_ways
def test_nothing_is_prepared_beyond_the_limit_but_what_is_needed(zeros: bool) -> None:
    executor = LateExecutor()
    file, room = open_room(disk(), zeros=zeros, step=1000, executor=executor)
    room.ensure(300, 500)
    room.close()
    assert file.size() == 500
    room.ensure(700, 500)
    room.close()
    assert file.size() == 700


@both_ways
def test_a_full_disk_shows_and_what_was_ready_still_is(zeros: bool) -> None:
    vfs = disk()
    file, room = open_room(vfs, zeros=zeros)
    room.ensure(500, LIMIT)
    file.pwritev([b"x" * 500], 0)
    vfs.capacity_bytes = 1200
    with pytest.raises(OSError, match="No space"):
        room.ensure(1500, LIMIT)
    room.ensure(1000, LIMIT)
    file.pwritev([b"y" * 500], 500)
    vfs.capacity_bytes = None
    room.ensure(1500, LIMIT)
    file.pwritev([b"z" * 500], 1000)
    assert file.pread(1500, 0) == b"x" * 500 + b"y" * 500 + b"z" * 500


@both_ways
def test_a_failure_ahead_of_need_is_ignored(zeros: bool) -> None:
    vfs, executor = disk(), LateExecutor()
    file, room = open_room(vfs, zeros=zeros, executor=executor)
    room.ensure(900, LIMIT)
    vfs.capacity_bytes = 1000
    executor.tasks[0].run()
    assert isinstance(executor.tasks[0].exception(), OSError)
    room.ensure(1000, LIMIT)
    file.pwritev([b"x" * 1000], 0)
    with pytest.raises(OSError, match="No space") as caught:
        room.ensure(1001, LIMIT)
    assert caught.value.errno == errno.ENOSPC
    room.close()


@both_ways
def test_the_append_that_needs_it_waits_for_the_background(zeros: bool) -> None:
    executor = LateExecutor()
    file, room = open_room(disk(), zeros=zeros, executor=executor)
    room.ensure(900, LIMIT)
    assert file.size() == 1000
    room.ensure(1500, LIMIT)
    assert executor.tasks[0].done()
    assert file.size() == 1900


@both_ways
def test_a_cut_file_is_prepared_again_from_the_cut(zeros: bool) -> None:
    vfs, executor = disk(), LateExecutor()
    file, room = open_room(vfs, zeros=zeros, executor=executor)
    room.ensure(900, LIMIT)
    room.reset(100)
    assert executor.tasks[0].done()
    file.truncate(100)
    vfs.capacity_bytes = 200
    with pytest.raises(OSError, match="No space"):
        room.ensure(500, LIMIT)


@given(
    zeros=st.booleans(),
    step=st.integers(1, 3000),
    is_background=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, 700), st.booleans(), st.booleans()), max_size=30),
)
def test_bytes_of_the_owner_are_never_zeroed(
    zeros: bool, step: int, is_background: bool, steps: list[tuple[int, bool, bool]]
) -> None:
    """The background runs as late as it may, or at once, or not at all."""
    vfs, executor = disk(), LateExecutor()
    vfs.write_all(PATH, b"old")
    file, room = open_room(
        vfs, zeros=zeros, ready=3, step=step, executor=executor if is_background else None
    )
    written = b"old"
    for size, runs_before, runs_after in steps:
        room.ensure(len(written) + size, 10_000)
        if runs_before and executor.tasks:
            executor.tasks[-1].run()
        file.pwritev([b"x" * size], len(written))
        written += b"x" * size
        if runs_after and executor.tasks:
            executor.tasks[-1].run()
    room.close()
    assert file.pread(len(written), 0) == written
    assert not file.pread(file.size(), len(written)).strip(b"\0")
