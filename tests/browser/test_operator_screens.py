"""Screens of operators in a browser, with something on each of them: whole in every form, and what
they offer done by clicks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mq.client import (
    Admin,
    Consumer,
    Message,
    Producer,
    PushConsumer,
    Resolution,
    SimpleConsumer,
    TransactionProducer,
)
from tests.browser.conftest import WatchedPage
from tests.support.console import ConsoleProcess
from tests.support.secured_broker import SecuredBroker
from tests.support.topics import eventually

OpenPage = Callable[..., WatchedPage]

HOSTILE = "<img src=x onerror=alert(1)>"
# A path, and what its heading says.
SCREENS = {
    "/groups": "Groups",
    "/groups/shipping": "shipping",
    "/groups/workers": "workers",
    "/groups/shipping/reset?topic=orders&to=latest": "Move shipping",
    "/dead-letters": "Dead letters",
    "/dead-letters/billing": "billing",
    "/scheduled": "Delayed",
    "/transactions": "Transactions",
    "/brokers": "Brokers",
    "/brokers/set-0/node-0?only=dynamic": "node-0",
    "/security/users": "Security",
    "/security/roles": "Security",
    "/security/keys": "Security",
    "/security/policies": "Security",
    "/security/quotas": "Security",
    "/security/namespaces": "Security",
    "/security/check?user=viewer&action=publish&kind=topic&name=orders": "Security",
    "/security/audit": "Security",
}


def fail(_: object) -> None:
    raise ValueError(HOSTILE)


def unknown(*_: object) -> Resolution:
    return Resolution.UNKNOWN


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("operators")) as broker:
        yield broker


@pytest.fixture(scope="module")
def viewer_key(broker: SecuredBroker) -> str:
    with Admin(broker.address, api_key=broker.root) as admin:
        admin.create_namespace("acme")
        admin.create_user("viewer", roles=["viewers"])
        admin.alter_quota("user:viewer", {"publish_bytes_per_s": 10 << 20, "topics": 5})
        for kind in ("topic", "group", "cluster"):
            admin.add_policy("role:viewers", f"allow describe {kind} *")
        admin.add_policy("role:viewers", "allow consume group *")
        return admin.create_key("viewer").text


@pytest.fixture(scope="module")
def console(broker: SecuredBroker, viewer_key: str) -> Iterator[str]:
    """With something on every screen."""
    assert viewer_key
    address = broker.address
    key: dict[str, Any] = {"api_key": broker.root}
    with Admin(address, **key) as admin, Producer(address, **key) as producer:
        admin.create_topic("orders", queues=2)
        admin.alter_group("billing", retries_max=0)
        for at in range(12):
            producer.send("orders", Message(HOSTILE.encode(), keys=[f"order-{at}"]))
            message = Message(b"x", tag="<b>tag", keys=["<b>key"], delay_s=3_600 + 600 * at)
            producer.send("reminders", message)
        with PushConsumer(address, "billing", "orders", fail, start="earliest", **key):
            eventually(lambda: sum(one.messages for one in admin.count_dead_letters()) == 12)
        with (
            Consumer(address, "shipping", "orders", start="earliest", **key) as consumer,
            SimpleConsumer(address, "workers", "orders", start="earliest", **key) as receiver,
            TransactionProducer(address, "services", unknown, unknown, **key) as transactional,
            ConsoleProcess(address) as running,
        ):
            consumer.poll(max_messages=1, timeout_s=10)
            assert receiver.receive(3, wait_s=10)
            transactional.send_in_transaction("orders", Message(b"half"))
            yield running.url


def sign_in(open_page: OpenPage, console: str, key: str, **form: object) -> WatchedPage:
    watched = open_page(console, **form)
    watched.open("/login")
    watched.page.fill("input[name=api_key]", key)
    watched.follow("main form button")
    watched.page.wait_for_url(f"{console}/")
    return watched


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_screen_of_operators_is_whole(
    open_page: OpenPage, console: str, broker: SecuredBroker, theme: str, width: int
) -> None:
    watched = sign_in(open_page, console, broker.root, theme=theme, width=width)
    page = watched.page
    for path, heading in SCREENS.items():
        assert watched.open(path).status == 200, path
        assert heading in page.inner_text("h1"), path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        nameless = page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
            ".filter(one => !one.labels.length && !one.getAttribute('aria-label')).length"
        )
        assert nameless == 0, path
        assert page.locator("table:not(.u-legend):not(:has(thead th))").count() == 0, path
        assert page.locator("img[src=x]").count() == 0, path
        # At a desk no table has to be moved to see its last column.
        if width == 1280:
            hidden = page.evaluate(
                "[...document.querySelectorAll('.table-wrap')]"
                ".filter(one => one.scrollWidth > one.clientWidth + 1).length"
            )
            assert hidden == 0, path
        assert watched.troubles == [], path


def test_dead_letters_are_chosen_resent_and_purged_by_clicks(
    open_page: OpenPage, console: str, broker: SecuredBroker
) -> None:
    watched = sign_in(open_page, console, broker.root)
    page = watched.page
    watched.open("/dead-letters/billing")
    page.check("tbody input[name=letter] >> nth=0")
    page.check("tbody input[name=letter] >> nth=1")
    watched.follow("button[value=resend]")
    page.wait_for_selector("text=Back to the list")
    assert page.locator("td .state.good").count() == 2
    watched.follow("text=Back to the list")
    page.check("[data-pick-all]")
    assert page.locator("input[name=letter]:checked").count() == 12
    watched.follow("button[value=resend]")
    page.wait_for_selector("text=Back to the list")
    assert page.locator("td .state.warn").count() == 2
    watched.follow("text=Back to the list")
    page.check("tbody input[name=letter] >> nth=5")
    watched.follow("button[value=purge]")
    assert "for good" in page.inner_text("main")
    watched.follow("main button.danger")
    page.wait_for_selector("text=Back to the list")
    watched.follow("text=Back to the list")
    assert page.locator("input[name=letter]").count() == 11
    assert watched.troubles == []


def test_a_group_is_moved_after_a_look_at_what_would_happen(
    open_page: OpenPage, console: str, broker: SecuredBroker
) -> None:
    watched = sign_in(open_page, console, broker.root)
    page = watched.page
    # A member that was heard of just now, however long the tests before this one took.
    with SimpleConsumer(broker.address, "workers", "orders", api_key=broker.root) as receiver:
        receiver.receive(1, wait_s=0.0)
        watched.open("/groups/workers")
        watched.follow("text=Move to another place")
        page.select_option("select[name=to]", "latest")
        watched.follow("text=Show what would happen")
        page.wait_for_selector("text=Skipped, never consumed")
        # It receives: somebody has to say that this is meant.
        page.check("input[name=with_members]")
        watched.follow("text=Move the group")
        page.wait_for_selector(".notice")
    with Admin(broker.address, api_key=broker.root) as admin:
        assert admin.describe_group("workers").summary.lag == 0
    assert watched.troubles == []


def test_what_waits_is_taken_back_and_a_producer_is_asked(
    open_page: OpenPage, console: str, broker: SecuredBroker
) -> None:
    watched = sign_in(open_page, console, broker.root)
    page = watched.page
    watched.open("/scheduled")
    before = page.locator("text=Take back…").count()
    assert page.locator(".histogram rect").count() > 3
    watched.follow("text=Take back… >> nth=0")
    watched.follow("text=Take it back")
    page.wait_for_selector(".notice")
    assert page.locator("text=Take back…").count() == before - 1
    watched.open("/transactions")
    watched.follow("text=Check now")
    page.wait_for_selector(".notice")
    assert watched.troubles == []


def test_a_viewer_sees_all_screens_and_no_button_that_changes_something(
    open_page: OpenPage, console: str, viewer_key: str
) -> None:
    watched = sign_in(open_page, console, viewer_key)
    page = watched.page
    for path, heading in SCREENS.items():
        if "/reset" in path or "/audit" in path or "/check" in path:
            continue
        assert watched.open(path).status == 200, path
        assert heading in page.inner_text("h1"), path
        buttons = page.eval_on_selector_all(
            "main form[method=post] button", "found => found.map(one => one.textContent)"
        )
        # Keys of its own are its own affair.
        assert [one for one in buttons if not re.match(r"Create$|Revoke", one)] == [], path
    assert watched.open("/groups/workers/reset").status == 403
