"""Screens of the console by which operators change something, with a real broker that knows its
callers: what is done is done, and those who may not are refused by both.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from mq.client import (
    Admin,
    Consumer,
    HalfMessage,
    Message,
    Producer,
    PushConsumer,
    Resolution,
    TransactionProducer,
)
from mq.console.app import make_app
from mq.console.settings import ConsoleSettings
from tests.support.secured_broker import SecuredBroker
from tests.support.topics import eventually

BASE = "http://127.0.0.1:8080"


class Browser:
    """A user at the console, by forms and links alone."""

    def __init__(self, client: TestClient, key: str) -> None:
        self._client = client
        answer = self.post("/login", "/login", api_key=key)
        assert answer.status_code == 303, answer.text

    def get(self, path: str) -> str:
        answer = self._client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        text: str = answer.text
        return text

    def post(self, page: str, path: str, **fields: Any) -> Any:
        """With the token of a page."""
        found = re.search(r'name="form_token" value="([^"]+)"', self._client.get(page).text)
        assert found is not None, page
        data = {"form_token": found[1], **fields}
        return self._client.post(path, data=data, headers={"origin": BASE})

    def confirmed(self, page: str, path: str, word: str = "yes", **fields: Any) -> None:
        """What will happen is told first; then it is done."""
        told = self.post(page, path, **fields)
        assert (told.status_code, 'name="confirmed"' in told.text) == (200, True), told.text
        done = self.post(page, path, **fields, confirmed=word)
        assert done.status_code == 303, done.text


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(Path(tmp_path_factory.mktemp("console"))) as process:
        yield process


@pytest.fixture(scope="module")
def admin(broker: SecuredBroker) -> Iterator[Admin]:
    with Admin(broker.address, api_key=broker.root) as opened:
        yield opened


@contextmanager
def signed_in(broker: SecuredBroker, key: str) -> Iterator[Browser]:
    app = make_app(ConsoleSettings(broker.address, sample_s=0.2))
    with TestClient(app, base_url=BASE, follow_redirects=False) as client:
        yield Browser(client, key)


@pytest.fixture(scope="module")
def root(broker: SecuredBroker) -> Iterator[Browser]:
    with signed_in(broker, broker.root) as browser:
        yield browser


@pytest.fixture(scope="module")
def viewer(broker: SecuredBroker, admin: Admin) -> Iterator[Browser]:
    admin.create_user("viewer")
    for kind in ("topic", "group"):
        admin.add_policy("user:viewer", f"allow describe {kind} *")
    admin.add_policy("user:viewer", "allow consume group *")
    with signed_in(broker, admin.create_key("viewer").text) as browser:
        yield browser


def test_a_group_is_moved_by_the_wizard(
    broker: SecuredBroker, admin: Admin, root: Browser, viewer: Browser
) -> None:
    admin.create_topic("orders", 2)
    with Producer(broker.address, api_key=broker.root) as producer:
        for at in range(10):
            producer.send("orders", Message(b"x"), queue_id=at % 2)
    with Consumer(
        broker.address, "shipping", "orders", start="earliest", api_key=broker.root
    ) as consumer:
        seen = 0
        while seen < 10:
            seen += len(consumer.poll_batch(timeout_s=10) or ())
    eventually(lambda: admin.describe_group("shipping").summary.members == 0)
    page = "/groups/shipping/reset?topic=orders&to=earliest"
    shown = root.get(page)
    assert "Consumed again" in shown
    assert "\N{MINUS SIGN}5" in shown
    assert admin.describe_group("shipping").summary.lag == 0
    fields = {"topic": "orders", "to": "earliest"}
    assert viewer.post("/groups", "/groups/shipping/reset", **fields).status_code == 403
    assert "/groups/shipping/reset" not in viewer.get("/groups/shipping")
    assert root.post(page, "/groups/shipping/reset", **fields).status_code == 303
    assert admin.describe_group("shipping").summary.lag == 10
    assert "10" in root.get("/groups/shipping")


def test_dead_letters_are_settled_one_by_one(
    broker: SecuredBroker, admin: Admin, root: Browser, viewer: Browser
) -> None:
    admin.create_topic("payments", 1)
    admin.alter_group("billing", retries_max=0)
    with Producer(broker.address, api_key=broker.root) as producer:
        for at in range(4):
            producer.send("payments", Message(f"<b>{at}".encode()))

    def fail(_: object) -> None:
        raise ValueError("<script>alert(1)</script>")

    with PushConsumer(
        broker.address, "billing", "payments", fail, start="earliest", api_key=broker.root
    ):
        eventually(lambda: sum(one.messages for one in admin.count_dead_letters()) == 4)
    page = "/dead-letters/billing"
    shown = root.get(page)
    assert shown.count('name="letter"') == 4
    assert "<script>alert" not in shown
    assert html.escape("<b>0") in shown
    assert 'name="letter"' not in viewer.get(page)
    chosen = {"action": "resend", "letter": ["set-0/0", "set-0/9"]}
    assert viewer.post(page, f"{page}/settle", **chosen).status_code == 403
    result = root.post(page, f"{page}/settle", **chosen).text
    assert "resent" in result
    assert "gone" in result
    assert "already resent" in root.post(page, f"{page}/settle", **chosen).text
    purge = {"action": "purge", "letter": "set-0/2"}
    assert "for good" in root.post(page, f"{page}/settle", **purge).text
    assert root.get(page).count('name="letter"') == 4
    assert "purged" in root.post(page, f"{page}/settle", **purge, confirmed="yes").text
    assert root.get(page).count('name="letter"') == 3
    root.confirmed(page, f"{page}/all", "billing", action="purge")
    assert admin.count_dead_letters() == []


def test_what_waits_is_taken_back_and_transactions_are_ended(
    broker: SecuredBroker, admin: Admin, root: Browser, viewer: Browser
) -> None:
    with Producer(broker.address, api_key=broker.root) as producer:
        producer.send("reminders", Message(b"x", keys=["k-1"], delay_s=3_600))
    (waiting,) = admin.list_scheduled().messages
    assert "k-1" in root.get("/scheduled")
    shown = viewer.get("/scheduled")
    assert waiting.message_id in shown
    assert "k-1" not in shown
    fields = {
        "topic": "reminders",
        "message_id": waiting.message_id,
        "deliver_at_ms": str(waiting.deliver_at_ms),
    }
    assert viewer.post("/scheduled", "/scheduled/recall", **fields).status_code == 403
    root.confirmed("/scheduled", "/scheduled/recall", **fields)
    assert not admin.list_scheduled().messages

    def unknown(_: HalfMessage, *__: object) -> Resolution:
        return Resolution.UNKNOWN

    with TransactionProducer(
        broker.address, "order-service", unknown, unknown, api_key=broker.root
    ) as transactional:
        transactional.send_in_transaction("orders", Message(b"half"))
        (half,) = admin.list_transactions().transactions
        fields = {"transaction_id": half.transaction_id, "topic": "orders"}
        assert half.transaction_id in root.get("/transactions")
        path = "/transactions/end"
        assert viewer.post("/transactions", path, **fields, action="check").status_code == 403
        assert root.post("/transactions", path, **fields, action="check").status_code == 303
        root.confirmed("/transactions", path, **fields, action="rollback")
    assert not admin.list_transactions().transactions


def test_brokers_show_their_clients_and_take_options(root: Browser, viewer: Browser) -> None:
    assert "Restart plan" in root.get("/brokers")
    page = "/brokers/set-0/node-0"
    shown = root.get(page)
    assert "python" in shown
    assert "retention.hours" in shown
    option = {"name": "log.level", "value": "warning"}
    assert viewer.post("/brokers", f"{page}/config", **option).status_code == 403
    root.confirmed(page, f"{page}/config", **option)
    assert 'value="warning"' in root.get(f"{page}?q=log.level")


def test_users_keys_and_policies_are_changed_and_recorded(
    broker: SecuredBroker, admin: Admin, root: Browser, viewer: Browser
) -> None:
    page = "/security/users"
    assert viewer.post("/groups", "/security/create-user", user="mallory").status_code == 403
    assert root.post(page, "/security/create-user", user="alice").status_code == 303
    line = {"subject_kind": "user", "subject": "alice", "line": "allow describe topic *"}
    assert root.post(page, "/security/add-policy", **line).status_code == 303
    made = root.post("/security/keys", "/security/new-key", user="alice").text
    key = re.search(r"mqk_[A-Za-z0-9]+_[A-Za-z0-9_-]+", made)
    assert key is not None
    with Admin(broker.address, api_key=key[0]) as alice:
        assert alice.list_topics()
    query = "user=alice&action=describe&kind=topic&name=orders"
    assert "allow describe topic *" in root.get(f"/security/check?{query}")
    root.confirmed(page, "/security/disable-user", user="alice", disabled="yes")
    assert "disabled" in root.get(page)
    root.confirmed(page, "/security/delete-user", user="alice")
    assert "alice" not in [one.name for one in admin.describe_access().state.users]
    deadline = time.monotonic() + 10
    while "user:alice" not in root.get("/security/audit?user=root"):
        assert time.monotonic() < deadline
    denied = root.get("/security/audit?what=denied")
    assert "viewer" in denied
