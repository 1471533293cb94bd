"""Every screen in a browser, dark and light, wide and narrow: nothing fails, nothing is fetched
from elsewhere, nothing is wider than the window. A screen that is added belongs into `SCREENS`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mq.client import Admin, Consumer, Message, Producer, aio
from tests.browser.conftest import WatchedPage
from tests.support.broker_process import BrokerProcess
from tests.support.console import ConsoleProcess
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import poll

OpenPage = Callable[..., WatchedPage]

# A path, and what its heading says. `{id}` is a message of `orders`.
SCREENS = {
    "/": "Overview",
    "/topics": "Topics",
    "/topics/orders": "orders",
    "/messages": "Messages",
    "/messages?topic=orders": "Messages",
    "/messages?topic=orders&text=paid&from=oldest": "Messages",
    "/messages?topic=orders&live=1": "Messages",
    "/messages/{id}": "set-0:",
    "/groups": "Groups",
    "/groups/billing": "billing",
    "/groups/billing/reset": "Move billing",
    "/dead-letters": "Dead letters",
    "/scheduled": "Delayed",
    "/transactions": "Transactions",
    "/trace": "Trace",
    "/trace?id={id}": "Trace",
    "/brokers": "Brokers",
    "/brokers/set-0/node-0": "node-0",
    "/security": "Security",
    "/send?from={id}": "Send a message",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("screens") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def message_id(broker: BrokerProcess) -> str:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("orders", queues=4)
        sent = [
            producer.send(
                "orders",
                Message(
                    json.dumps({"order": number, "state": "paid"}).encode(),
                    tag="paid",
                    keys=[f"order-{number}"],
                    properties={"region": "EU"},
                ),
            )
            for number in range(80)
        ]
        with Consumer(broker.address, "billing", "orders", start="earliest") as consumer:
            consumer.poll(max_messages=10, timeout_s=10)
            consumer.commit()
    return sent[-1].message_id


@pytest.fixture(scope="module")
def console(broker: BrokerProcess, message_id: str) -> Iterator[str]:
    assert message_id
    with ConsoleProcess(broker.address) as running:
        yield running.url


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_screen_is_whole(
    open_page: OpenPage, console: str, message_id: str, theme: str, width: int
) -> None:
    watched = open_page(console, theme=theme, width=width)
    grounds = set()
    for path, heading in SCREENS.items():
        answer = watched.open(path.replace("{id}", quote(message_id, safe="")))
        assert answer.status == 200, path
        page = watched.page
        assert heading in page.inner_text("h1"), path
        assert page.locator("main").count() == page.locator("h1").count() == 1, path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        # Every field has a name, every table its headings.
        nameless = page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
            ".filter(one => !one.labels.length && !one.getAttribute('aria-label')).length"
        )
        assert nameless == 0, path
        assert page.locator("table:not(.u-legend):not(:has(thead th))").count() == 0, path
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert watched.troubles == [], path
    [ground] = grounds
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (theme == "dark")


def test_times_are_local_or_utc_and_the_theme_stays_chosen(
    open_page: OpenPage, console: str, message_id: str
) -> None:
    watched = open_page(console, zone="Asia/Tokyo")
    page = watched.page
    watched.open(f"/messages/{quote(message_id, safe='')}")
    shown = page.locator("time").first
    local, at_ms = shown.inner_text(), int(shown.get_attribute("data-ms"))
    page.click("#zone")
    utc = shown.inner_text()
    assert local != utc
    assert utc.startswith(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms // 1000)))
    assert local.startswith(
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms // 1000 + 9 * 3600))
    )
    page.click("#theme")
    page.click("#theme")
    watched.open("/")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.get_attribute("#zone", "aria-pressed") == "true"
    assert watched.troubles == []


def test_the_keyboard_reaches_the_content_first(open_page: OpenPage, console: str) -> None:
    watched = open_page(console)
    watched.open("/topics")
    watched.page.keyboard.press("Tab")
    assert watched.page.evaluate("document.activeElement.className") == "skip"
    watched.page.keyboard.press("Enter")
    assert watched.page.evaluate("document.activeElement.id") == "content"


def test_lists_refresh_while_somebody_looks_and_plots_are_drawn(
    open_page: OpenPage, console: str, broker: BrokerProcess
) -> None:
    watched = open_page(console)
    page = watched.page
    watched.open("/topics/orders")
    page.wait_for_selector(".plot canvas")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    before = page.inner_text(".facts")
    with Producer(broker.address) as producer:
        producer.send("orders", "one more")
    page.wait_for_function(
        "text => document.querySelector('.facts').innerText !== text", arg=before
    )
    assert f"{console}/topics/orders" in asked
    # Nobody sees it: nothing is asked for.
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState', {get: () => 'hidden'}); "
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_load_state("networkidle")
    asked.clear()
    page.wait_for_timeout(5_500)
    assert asked == []
    assert watched.troubles == []


def test_a_refresh_takes_nothing_from_under_the_keyboard(open_page: OpenPage, console: str) -> None:
    watched = open_page(console)
    page = watched.page
    watched.open("/topics")
    page.locator("#live a").first.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    chosen = page.evaluate_handle("document.activeElement")
    page.wait_for_timeout(5_500)
    assert page.evaluate("one => document.activeElement === one && one.isConnected", chosen)
    with page.expect_request(f"{console}/topics"):
        page.keyboard.press("Escape")
        page.evaluate("document.activeElement.blur()")
    assert watched.troubles == []


def test_times_are_typed_as_they_are_shown_and_sent_in_utc(
    open_page: OpenPage, console: str
) -> None:
    watched = open_page(console, zone="Asia/Tokyo")
    page = watched.page
    watched.open("/messages?topic=orders&from=time&time=2026-01-02T03:04:05Z")
    field = page.locator("[name=time]")
    assert field.input_value() == "2026-01-02 12:04:05"
    assert "local time" in page.inner_text("label[data-place=time]")
    page.click("#zone")
    assert field.input_value() == "2026-01-02 03:04:05"
    page.click("#zone")
    field.fill("2026-01-02 09:00")
    watched.follow(page.get_by_role("button", name="Find"))
    page.wait_for_url("**time=2026-01-02T00%3A00%3A00.000Z**")
    assert field.input_value() == "2026-01-02 09:00:00"
    field.fill("-10m")
    watched.follow(page.get_by_role("button", name="Find"))
    page.wait_for_url("**time=-10m**")
    assert field.input_value() == "-10m"
    assert watched.troubles == []


def test_the_command_of_a_form_follows_what_is_typed(open_page: OpenPage, console: str) -> None:
    watched = open_page(console)
    page = watched.page
    watched.open("/topics")
    page.click("text=Create a topic")
    page.locator("#create-topic [name=topic]").fill("orders.eu")
    page.locator("#create-topic [name=queues]").fill("16")
    shown = page.locator("[data-of=create-topic]")
    line = "mq topic create orders.eu --queues 16 --type normal"
    assert shown.locator("code").inner_text() == line
    assert shown.locator("button").get_attribute("data-copy") == line
    watched.follow(page.get_by_role("button", name="Create"))
    page.wait_for_url(f"{console}/topics/orders.eu*")
    watched.open("/send?topic=orders.eu")
    page.locator("[name=body]").fill("it's <b>paid</b>")
    page.locator("[name=keys]").fill("k-1\n k 2 ")
    page.locator("[name=delay]").fill("5")
    line = "mq produce orders.eu 'it'\"'\"'s <b>paid</b>' --key k-1 --key 'k 2' --delay 5s"
    assert page.locator("[data-of=send] code").inner_text() == line
    assert watched.troubles == []


def test_a_message_is_sent_edited_and_found_by_hand(open_page: OpenPage, console: str) -> None:
    watched = open_page(console)
    page = watched.page
    watched.open("/send")
    page.get_by_label("Topic").fill("by-hand")
    page.locator("[name=body]").fill('{"a": "<b>ü</b>"}')
    page.get_by_label("Tag").fill("new")
    page.get_by_label("Keys, one a line").fill("k-1\nk-2")
    watched.follow(page.get_by_role("button", name="Send", exact=True))
    watched.follow(page.get_by_role("status").get_by_role("link").first)
    assert '"a": "<b>ü</b>"' in page.inner_text("pre")
    watched.follow(page.get_by_role("link", name="Edit and send"))
    page.locator("[name=body]").fill("second")
    watched.follow(page.get_by_role("button", name="Send", exact=True))
    watched.follow(page.get_by_role("link", name="Messages of by-hand"))
    assert page.locator("tbody tr").count() == 2
    page.get_by_label("Key", exact=True).fill("k-2")
    watched.follow(page.get_by_role("button", name="Find"))
    assert page.locator("tbody tr").count() == 2
    with page.expect_download() as downloaded:
        page.get_by_role("link", name="JSON lines").click()
    lines = Path(downloaded.value.path()).read_text().splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["second", '{"a": "<b>ü</b>"}']
    assert watched.troubles == []


def test_a_viewer_signs_in_sees_no_button_and_is_refused(
    open_page: OpenPage, tmp_path: Path
) -> None:
    password = "long enough, and secret"  # noqa: S105
    with SecuredBroker(tmp_path) as broker:
        with Admin(broker.address, api_key=broker.root) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_user("viewer", password=password)
            admin.add_policy("user:viewer", "allow describe,consume topic *")
        with ConsoleProcess(broker.address) as running:
            watched = open_page(running.url)
            page = watched.page
            watched.open("/topics/orders")
            assert page.inner_text("h1") == "Sign in"
            page.get_by_label("User").fill("viewer")
            page.get_by_label("Password").fill(password)
            watched.follow(page.get_by_role("button", name="Sign in"))
            assert page.inner_text("h1") == "orders"
            for name in ("Send", "Delete", "Create"):
                assert page.get_by_role("button", name=name).count() == 0
            assert page.locator("main a.button").all_inner_texts() == ["Messages"]
            assert watched.troubles == []
            # With a token and an origin that are right: it is the broker that says no.
            status = page.evaluate(
                """async () => {
                  const form_token = document.querySelector("[name=form_token]").value;
                  const body = new URLSearchParams({form_token, topic: "orders", body: "x"});
                  return (await fetch("/send", {method: "POST", body})).status;
                }"""
            )
            assert status == 403
            watched.follow(page.get_by_role("button", name="Sign out"))
            assert page.inner_text("h1") == "Sign in"


def test_ten_thousand_topics_are_paged(open_page: OpenPage, tmp_path: Path) -> None:
    async def create(address: str, count: int) -> None:
        turn = asyncio.Semaphore(64)

        async def one(admin: aio.Admin, number: int) -> None:
            async with turn:
                await admin.create_topic(f"tenant-{number % 100:02}-{number:05}", 1)

        async with aio.Admin(address, timeout_s=60) as admin:
            await asyncio.gather(*(one(admin, number) for number in range(count)))

    def seconds(watched: WatchedPage, path: str) -> float:
        taken = []
        for _ in range(3):
            began_s = time.monotonic()
            watched.open(path)
            taken.append(time.monotonic() - began_s)
        return min(taken)

    with BrokerProcess(tmp_path / "data", "--store-flush", "async") as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("only-one", 1)
        with ConsoleProcess(broker.address) as running:
            watched = open_page(running.url)
            poll(lambda: watched.open("/topics") and _total(watched) == 1, "one topic is sampled")
            few_s = seconds(watched, "/topics")
            # Not on this thread's loop, which is Playwright's.
            _on_a_thread(lambda: asyncio.run(create(broker.address, 9_999)))
            poll(lambda: watched.open("/topics") and _total(watched) == 10_000, "all are sampled")
            many_s = seconds(watched, "/topics?page=77&sort=messages")
            assert watched.page.locator("tbody tr").count() == 50
            watched.open("/topics?q=tenant-42")
            assert _total(watched) == 100
            print(f"a page of 1 topic: {few_s:.3f} s; of 10,000: {many_s:.3f} s")  # noqa: T201
            # A page costs its fifty rows, not the ten thousand; generous, for a busy machine.
            assert many_s < 10 * few_s + 0.5
            assert watched.troubles == []


def _total(watched: WatchedPage) -> int:
    found = re.search(r"([\d,]+) topics", watched.page.inner_text("main"))
    return int(found[1].replace(",", "")) if found else 0


def _on_a_thread(work: Callable[[], Any]) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
