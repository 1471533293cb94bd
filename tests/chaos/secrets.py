"""The secrets of a secure cluster of processes: an authority, the certificate of all nodes, the key
of its administrator and the keys by which brokers know each other and encrypt what they store.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mq.access import keys
from tests.chaos.engine import Access
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Mapping


class Secrets:
    """All of it in files of the directory, which only their owner can read."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._certificate = Authority(directory).files("127.0.0.1")
        root = keys.new().text
        self.access = Access(self._certificate.ca, root)
        contents: Mapping[str, bytes] = {
            "first-admin": f"root:{root}\n".encode(),
            "cluster.key": f"{keys.new().text}\n".encode(),
            "secret.key": os.urandom(32),
        }
        for name, content in contents.items():
            (directory / name).write_bytes(content)
            (directory / name).chmod(0o600)
        self._directory = directory

    @property
    def flags(self) -> list[str]:
        """Of every broker."""
        found = {
            "--auth-mode": "required",
            "--auth-bootstrap-admin-file": str(self._directory / "first-admin"),
            "--auth-cluster-key-file": str(self._directory / "cluster.key"),
            "--auth-secret-key-file": str(self._directory / "secret.key"),
            "--broker-tls": "required",
            **self._certificate.flags("broker"),
            **self._certificate.flags("raft"),
        }
        return list(itertools.chain.from_iterable(found.items()))
