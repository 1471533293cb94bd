"""The owner of a data directory: `<data>/node.toml`, and the lock that keeps a second process out.

A node that starts on the directory of another one would vote and serve with a foreign log; it is
refused instead.
"""

from __future__ import annotations

import tomllib
from typing import NamedTuple

from mq.errors import DataDirectoryInUse, WrongDataDirectory
from mq.store.vfs import File, Vfs, write_file_atomically

FORMAT_VERSION = 1
FILE_NAME = "node.toml"
LOCK_NAME = "lock"
# What may stand in a directory that is still free to take: mount points come with some of it.
_NOT_CONTENT = frozenset({LOCK_NAME, FILE_NAME + ".new", "lost+found"})


class Identity(NamedTuple):
    cluster: str
    broker_set: str
    node: str


def take(vfs: Vfs, directory: str, identity: Identity) -> File:
    """Locks the directory for this process and makes sure that it is this node's. Close the result
    to let go.

    An empty directory becomes this node's, durably. DataDirectoryInUse, WrongDataDirectory: nothing
    was changed.
    """
    _make_durable_dirs(vfs, directory.rstrip("/"))
    # Once more under the lock; here so that a directory that is not ours does not even get a lock.
    _is_free(vfs, directory, identity)
    try:
        lock = vfs.lock(f"{directory}/{LOCK_NAME}")
    except BlockingIOError:
        raise DataDirectoryInUse(
            f"{directory} is in use by another process: "
            "stop it, or give this node a directory of its own"
        ) from None
    try:
        if _is_free(vfs, directory, identity):
            _write(vfs, directory, identity)
    except BaseException:
        lock.close()
        raise
    return lock


def read(vfs: Vfs, directory: str) -> Identity | None:
    """None when the directory has no owner yet. WrongDataDirectory when it cannot be ours."""
    path = f"{directory}/{FILE_NAME}"
    size = vfs.file_size(path)
    if size is None:
        return None
    file = vfs.open(path, read_only=True)
    try:
        table = tomllib.loads(file.pread(size, 0).decode())
        version, *fields = (table[key] for key in ("format_version", *Identity._fields))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError) as error:
        raise WrongDataDirectory(f"{path} is not readable ({error}): restore the file") from None
    finally:
        file.close()
    if version != FORMAT_VERSION:
        raise WrongDataDirectory(
            f"{directory} has format version {version}; this program reads version {FORMAT_VERSION}"
        )
    return Identity._make(map(str, fields))


def _make_durable_dirs(vfs: Vfs, directory: str) -> None:
    if directory and not vfs.exists(directory):
        parent = directory.rpartition("/")[0]
        _make_durable_dirs(vfs, parent)
        vfs.make_dirs(directory)
        vfs.sync_dir(parent or ("/" if directory.startswith("/") else "."))


def _is_free(vfs: Vfs, directory: str, identity: Identity) -> bool:
    """Whether the directory has no owner yet. WrongDataDirectory when it has another one."""
    found = read(vfs, directory)
    if found is None:
        content = set(vfs.list_dir(directory)) - _NOT_CONTENT
        if content:
            raise WrongDataDirectory(
                f"{directory} has no {FILE_NAME} but holds {', '.join(sorted(content)[:3])}: "
                "it is not a data directory; give the node an empty one"
            )
    elif found != identity:
        raise WrongDataDirectory(
            f"{directory} belongs to node {found.node} of set {found.broker_set} in cluster "
            f"{found.cluster}; this is node {identity.node} of set {identity.broker_set} in "
            f"cluster {identity.cluster}. Start it as that node, or give this one a directory of "
            "its own"
        )
    return found is None


def _write(vfs: Vfs, directory: str, identity: Identity) -> None:
    lines = [f"format_version = {FORMAT_VERSION}"]
    lines += [f'{key} = "{value}"' for key, value in identity._asdict().items()]
    text = "\n".join(lines) + "\n"
    write_file_atomically(vfs, f"{directory}/{FILE_NAME}", [text.encode()])
