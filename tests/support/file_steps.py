"""Short ways to use files in tests, and random sequences of file operations for property tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.store.vfs import Vfs

# Kind, which of two files, position or size, length.
Step: TypeAlias = tuple[str, int, int, int]


def write(vfs: Vfs, path: str, data: bytes, position: int = 0, *, sync: bool = False) -> None:
    file = vfs.open(path, create=True)
    file.pwritev([data], position)
    if sync:
        file.sync()
    file.close()


def read(vfs: Vfs, path: str) -> bytes:
    file = vfs.open(path, read_only=True)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def error_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is what it returns
        call()
    return caught.value.errno


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "write", "truncate", "allocate", "sync", "replace", "remove", "view"]
        ),
        st.integers(0, 1),
        st.integers(0, 2000),
        st.integers(1, 1500),
    ),
    max_size=20,
)


def perform(vfs: Vfs, root: str, steps: list[Step]) -> list[object]:
    """The observations of the steps, to be compared with another disk."""
    shown: list[object] = []
    for index, (kind, which, position, length) in enumerate(steps):
        path, other = (f"{root}/{name}" for name in ("ab", "ba")[which])
        if kind == "remove":
            vfs.remove(path)
        elif kind == "replace":
            if vfs.exists(path):
                vfs.replace(path, other)
        else:
            file = vfs.open(path, create=True)
            if kind == "write":
                file.pwritev([bytes([index + 1]) * length, b"|"], position)
            elif kind == "truncate":
                file.truncate(position)
            elif kind == "allocate":
                file.allocate(position, length)
            elif kind == "view":
                shown.append(bytes(file.view(file.size())))
            else:
                file.sync()
            shown.append(file.pread(length, position))
            file.close()
        shown.append([(name, read(vfs, f"{root}/{name}")) for name in vfs.list_dir(root)])
    return shown
