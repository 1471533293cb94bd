"""A broker that wants to know its callers, for benchmarks: an administrator, and a user who may
send and consume by policies, not by being a superuser.
"""

from __future__ import annotations

import time
from pathlib import Path

from mq.access import keys
from mq.client import Admin
from mq.errors import Unauthenticated

_START_S = 30.0


class KnownCallers:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._root = keys.new().text
        admin_file = directory / "first-admin"
        admin_file.write_text(f"root:{self._root}\n")
        admin_file.chmod(0o600)
        # Of `mq server`.
        self.flags = ("--auth-mode", "required", "--auth-bootstrap-admin-file", str(admin_file))
        # Of the user.
        self.key_file = directory / "user.key"

    def prepare(self, address: str, topic: str, queues: int) -> None:
        """The topic, and a user who may use it with any group."""
        with Admin(address, api_key=self._root) as admin:
            self._wait_for_root(admin)
            admin.create_topic(topic, queues)
            admin.create_user("bench")
            for line in (f"allow publish,consume topic {topic}", "allow consume group *"):
                admin.add_policy("user:bench", line)
            self.key_file.write_text(admin.create_key("bench").text)

    def _wait_for_root(self, admin: Admin) -> None:
        """The broker makes it when it leads."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                admin.who_am_i()
            except Unauthenticated:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return
