"""Files with secrets, which their owner alone may read: a file that others can read is refused.
One of root may be read by its group: that is how Kubernetes hands a Secret to a process.

auth.bootstrap_admin_file   NAME:SECRET, one line; SECRET is an API key (mqk_...), or a password
auth.cluster_key_file       an API key; a second line may have another one, see `ClusterKeys`
auth.secret_key_file        32 random bytes or more, of whatever form
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from mq.access import keys, passwords
from mq.access.keys import ApiKey
from mq.access.secrets import SecretBox
from mq.errors import IllegalConfig, IllegalRequest
from mq.logging import get_logger

log = get_logger(__name__)

_BYTES_MAX = 4_096
_CHECK_S = 10.0


def read_private(option: str, path: str) -> bytes:
    """Raises IllegalConfig, whose text has nothing of the content."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise IllegalConfig(f"{option}: {path!r} cannot be read: {error.strerror}") from None
    others = 0o037 if found.st_uid == 0 != os.geteuid() else 0o077
    if found.st_mode & others or not stat.S_ISREG(found.st_mode):
        raise IllegalConfig(
            f"{option}: {path!r} can be read by others than its owner: chmod 600 it, and think of "
            "what it holds as known"
        )
    if len(data) > _BYTES_MAX:
        raise IllegalConfig(f"{option}: {path!r} has more than {_BYTES_MAX} bytes")
    return data


def _lines(option: str, path: str) -> list[str]:
    try:
        text = read_private(option, path).decode()
    except UnicodeDecodeError:
        raise IllegalConfig(f"{option}: {path!r} is no text") from None
    return text.split("\n")


class FirstAdmin(NamedTuple):
    """The first administrator: with a key or a password."""

    user: str
    key: ApiKey | None
    password: str

    def __repr__(self) -> str:
        return f"FirstAdmin({self.user!r})"


def first_admin(path: str) -> FirstAdmin:
    option = "auth.bootstrap_admin_file"
    found = [line for line in _lines(option, path) if line]
    name, colon, secret = found[0].partition(":") if len(found) == 1 else ("", "", "")
    if not name or not colon:
        raise IllegalConfig(f"{option}: {path!r} has to have one line, NAME:SECRET")
    if secret.startswith(keys.PREFIX):
        key = keys.parse(secret)
        if key is None:
            raise IllegalConfig(f"{option}: what stands behind the name in {path!r} is no key")
        return FirstAdmin(name, key, "")
    try:
        passwords.check(secret)
    except IllegalRequest as error:
        raise IllegalConfig(f"{option}: {path!r}: {error}") from None
    return FirstAdmin(name, None, secret)


def _without_line_end(key: bytes) -> bytes:
    """A text may end with a line; of random bytes, each one counts."""
    return key.strip() if key.isascii() else key


def secret_box(path: str) -> SecretBox | None:
    """None: there is no file, and nothing can be encrypted."""
    option = "auth.secret_key_file"
    if not path:
        return None
    try:
        return SecretBox(_without_line_end(read_private(option, path)))
    except ValueError as error:
        raise IllegalConfig(f"{option}: {path!r}: {error}") from None


class BrokerKeys(NamedTuple):
    """The secrets of these files that a broker needs."""

    # None: there are no secrets to encrypt.
    box: SecretBox | None = None
    is_cluster_key: Callable[[ApiKey], bool] = lambda _: False


class ClusterKeys:
    """The keys by which brokers of one cluster know each other. The first one is presented, all are
    accepted: a new key is added to all files as the second line, then becomes the first one, then
    the old one goes. The file is read again when it changes; one that cannot be read changes
    nothing.
    """

    def __init__(self, path: str, now_s: Callable[[], float]) -> None:
        """IllegalConfig. `now_s` is a monotonic clock. An empty path: there are none."""
        self._path = path
        self._now_s = now_s
        self._checked_s = now_s()
        self._stamp = self._stamped()
        self._keys = self._read() if path else []

    def __repr__(self) -> str:
        return f"ClusterKeys({self._path!r})"

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """Of a call to another broker."""
        self._refresh()
        return [("authorization", f"Bearer {self._keys[0].text}")] if self._keys else []

    def accepts(self, key: ApiKey) -> bool:
        self._refresh()
        # All of them are compared, whatever the first ones say.
        found = [
            keys.is_right(key.secret, keys.digest(one.secret)) and key.id == one.id
            for one in self._keys
        ]
        return any(found)

    def _refresh(self) -> None:
        if not self._path or self._now_s() - self._checked_s < _CHECK_S:
            return
        self._checked_s = self._now_s()
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = self._read()
        except IllegalConfig as error:
            log.warning("the keys of the cluster stay as they were", error=str(error))

    def _stamped(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0, 0
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> list[ApiKey]:
        option = "auth.cluster_key_file"
        lines = [line.strip() for line in _lines(option, self._path) if line.strip()]
        found = [key for key in map(keys.parse, lines) if key is not None]
        if not 0 < len(found) == len(lines) <= 2:
            raise IllegalConfig(
                f"{option}: {self._path!r} has to have an API key, or two, a line each"
            )
        return found
