"""A real broker that wants to know its callers, with an administrator called root.

with SecuredBroker(tmp_path) as broker, Admin(broker.address, api_key=broker.root) as admin:
    admin.create_user("alice")
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from mq.access import keys
from tests.support.broker_process import START_S, BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path


class SecuredBroker(BrokerProcess):
    def __init__(self, folder: Path, *flags: str, mode: str = "required") -> None:
        """Its data and the file of its first administrator are in the folder."""
        # The text of a key.
        self.root = keys.new().text
        # As a client reads it.
        self.root_file = folder / "root.key"
        admin_file = folder / "first-admin"
        for path, text in ((self.root_file, self.root), (admin_file, f"root:{self.root}")):
            path.write_text(f"{text}\n")
            path.chmod(0o600)
        admin = ("--auth-bootstrap-admin-file", str(admin_file))
        super().__init__(folder / "data", "--auth-mode", mode, *admin, *flags)
        self._has_root = False

    def start(self, *flags: str) -> Self:
        """Returns when root is known."""
        super().start(*flags)
        deadline = time.monotonic() + START_S
        while not self._has_root:
            events = [line.get("event") for line in self.log()]
            self._has_root = "the first administrator was created" in events
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.01)
        return self
