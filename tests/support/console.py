"""A console as tests ask it: the application in this process, or `mq console` in its own.

with console_of(broker.address) as console:
    page = console.get("/topics")
    console.send_form("/topics", topic="orders", type="normal")
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any, Self

from starlette.testclient import TestClient

from mq.console.app import make_app
from mq.console.settings import ConsoleSettings
from tests.support.waiting import DEADLINE_S

BASE = "http://127.0.0.1:8080"


class Console(TestClient):
    """With forms as its pages have them."""

    def token(self, path: str = "/") -> str:
        found = re.search(r'name="form_token" value="([^"]+)"', self.get(path).text)
        assert found is not None, path
        return found[1]

    def send_form(self, path: str, page: str = "/send", **fields: str) -> Any:
        token = self.token(page)
        data = {"form_token": token, **fields}
        return self.post(path, data=data, headers={"origin": BASE})

    def sign_in(self, **fields: str) -> Any:
        return self.send_form("/login", "/login", **fields)


@contextlib.contextmanager
def console_of(servers: str, **settings: Any) -> Iterator[Console]:
    made = make_app(ConsoleSettings(servers, **{"sample_s": 0.5, **settings}))
    with Console(made, base_url=BASE, follow_redirects=False) as client:
        yield client


class ConsoleProcess:
    """`mq console` on a free port."""

    def __init__(self, servers: str, *flags: str, stderr: IO[Any] | None = None) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mq", "console", "--server", servers),
                *("--port", "0", "--json", *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            if line == "}\n":
                break
        self.url: str = json.loads(text)["address"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert self._process.stdout is not None
        self._process.stdout.close()
