"""An official RocketMQ 5 client in a process of its own, which a test tells what to do.

    with Client(programs.command("go", CLIENTS / "go"), broker.address) as client:
        client.do("send", topic="orders", body="one")
        consumer = client.do("push", topic="orders", group="billing")["consumer"]
        first = client.messages(consumer, 1)[0]

There is one small program a language, in the folder of its name, which calls nothing but the
official package. Requests are lines of JSON on its stdin, all may be under way at once, answers and
events are lines on its stdout:

    {"id": 1, "do": "send", "topic": "orders", "body": "one"}     {"id": 1, "message_id": "01..."}
    {"id": 2, "do": "push", "topic": "orders", "group": "g"}      {"id": 2, "consumer": 2}
                                   {"event": "message", "consumer": 2, "call": 1, "message": {...}}

    send      topic, body, [tag, keys, properties, message_group, deliver_at_ms, priority]
    half      the same and end: commit, rollback or none; a question of the server is an event
              "check", and the property `check` says the answer: commit, rollback or unknown
    recall    topic, recall_handle
    simple    group, topic, [tags or sql], await_s; then receive, ack, change, close
    push      group, topic, [tags or sql]; the property `failures` says how often the handler fails
    load      topic, in_flight, seconds, size (Go and Java)

An answer with "error" has failed, and `do` raises it as ClientError.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# One folder a language.
CLIENTS = Path(__file__).parent
# A request waits for the start of a client, and Java's for more than that.
_ANSWER_S = 60.0
_STOP_S = 30.0

Message = dict[str, Any]  # as the programs show it


class ClientError(Exception):
    """As the package says it: often less than the broker did, which is in `Client.log`."""


class Client:
    def __init__(
        self,
        command: Sequence[str],
        address: str,
        environment: Mapping[str, str] | None = None,
        *,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`on_event` gets the events, on the thread that reads them; without it they are kept."""
        # They log below the home directory.
        self._home = tempfile.TemporaryDirectory(prefix="rocketmq-")
        self._errors = Path(self._home.name) / "stderr"
        home = {
            "HOME": self._home.name,
            "rocketmq.client.logRoot": self._home.name,
            "JAVA_TOOL_OPTIONS": f"-Duser.home={self._home.name}",
        }
        with self._errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*command, address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **home, **(environment or {})},
            )
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._events: list[dict[str, Any]] = []
        self._on_event = on_event or self._events.append
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Without a farewell to the broker: what a client leaves behind is the broker's to mind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(_STOP_S)
        self._reader.join(_STOP_S)
        self._process.stdin.close()
        self._process.stdout.close()
        self._home.cleanup()

    def do(self, deed: str, **fields: Any) -> dict[str, Any]:
        """Returns the answer."""
        return self.begin(deed, **fields)(_ANSWER_S)

    def begin(self, deed: str, **fields: Any) -> Callable[[float], dict[str, Any]]:
        """Does not wait; what it returns waits so many seconds for the answer."""
        assert self._process.stdin is not None
        number = next(self._ids)
        answers = self._answers[number] = queue.SimpleQueue()
        with self._lock:
            line = json.dumps({"id": number, "do": deed, **fields})
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

        def wait(answer_s: float) -> dict[str, Any]:
            try:
                found = answers.get(timeout=answer_s)
            except queue.Empty:
                raise AssertionError(f"no answer in {answer_s} s to {line}\n{self.log()}") from None
            if "error" in found:
                error = ClientError(found["error"])
                error.add_note(self.log())
                raise error
            return found

        return wait

    def receive(self, consumer: int, count: int, invisible_s: int = 30) -> list[Message]:
        """At least one message, unless none comes."""
        found = self.do("receive", consumer=consumer, count=count, invisible_s=invisible_s)
        messages: list[Message] = found["messages"]
        return messages

    def receive_all(self, consumer: int, count: int, invisible_s: int = 30) -> list[Message]:
        """So many, in as many calls as it takes."""
        messages: list[Message] = []
        deadline = time.monotonic() + _ANSWER_S
        while len(messages) < count:
            assert time.monotonic() < deadline, f"{messages} in place of {count}\n{self.log()}"
            messages += self.receive(consumer, count - len(messages), invisible_s)
        return messages

    def calls(self, consumer: int) -> list[dict[str, Any]]:
        """Of the handler of a push consumer, so far."""
        found = [*self._events]
        return [one for one in found if one["event"] == "message" and one["consumer"] == consumer]

    def messages(self, consumer: int, count: int, within_s: float = _ANSWER_S) -> list[Message]:
        """Waits for so many calls of the handler."""
        try:
            poll(lambda: len(self.calls(consumer)) >= count, f"{count} messages", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.calls(consumer)}\n{self.log()}") from None
        return [one["message"] for one in self.calls(consumer)]

    def checks(self) -> list[Message]:
        """The transactions that the server asked about."""
        return [one["message"] for one in [*self._events] if one["event"] == "check"]

    def log(self, chars: int = 4000) -> str:
        """The end of what the program and the package wrote, so much of each file."""
        files = [path for path in sorted(Path(self._home.name).rglob("*")) if path.is_file()]
        texts = {path.name: path.read_text(errors="replace") for path in files}
        return "\n".join(f"--- {name}\n{text[-chars:]}" for name, text in texts.items() if text)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(b"{"):
                continue  # of a package that prints
            found = json.loads(line)
            if "event" in found:
                self._on_event(found)
            else:
                self._answers.pop(found["id"]).put(found)
        for answers in [*self._answers.values()]:
            answers.put({"error": f"the program has ended\n{self.log()}"})
