"""A live tail in a browser, while the leader of its broker set is killed: every message, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from mq.client import Admin, Message, Producer
from tests.browser.conftest import WatchedPage
from tests.support.broker_process import BrokerProcess
from tests.support.broker_set import BrokerSet
from tests.support.console import ConsoleProcess
from tests.support.raft_cluster import free_port
from tests.support.waiting import poll

OpenPage = Callable[..., WatchedPage]
COUNT = 160


def keys_of(watched: WatchedPage) -> list[str]:
    """Of all rows, the oldest first."""
    found: list[str] = watched.page.locator("#tail-rows td.keys").all_inner_texts()
    return found[::-1]


def test_a_tail_over_the_death_of_the_leader_misses_nothing(
    open_page: OpenPage, tmp_path: Path
) -> None:
    with BrokerSet(tmp_path) as brokers:
        with Admin(brokers.servers) as admin:
            admin.create_topic("orders", queues=4)
        with ConsoleProcess(brokers.servers) as running, Producer(brokers.servers) as producer:
            watched = open_page(running.url)
            watched.open("/messages?topic=orders&live=1")
            page = watched.page
            page.wait_for_selector("#tail-state.good")
            done = threading.Event()

            def send() -> None:
                for number in range(COUNT):
                    message = Message(b"order", keys=[f"k{number}"])
                    producer.send("orders", message, timeout_s=60)
                    time.sleep(0.03)
                done.set()

            thread = threading.Thread(target=send)
            thread.start()
            poll(lambda: len(keys_of(watched)) > 20, "messages come")
            killed = brokers.kill_leader()
            poll(lambda: _wait(watched) and done.is_set(), "all are sent")
            thread.join()
            poll(lambda: _wait(watched) and len(keys_of(watched)) >= COUNT, "all have come")
            assert sorted(keys_of(watched)) == sorted(f"k{number}" for number in range(COUNT))
            assert page.inner_text("#tail-skipped") == ""
            # The other way of coming back: the browser lost the console, not the console a broker.
            page.click("#tail-pause")
            brokers.start(killed)
            producer.send("orders", Message(b"order", keys=["while it was paused"]))
            page.click("#tail-pause")
            poll(lambda: _wait(watched) and "while it was paused" in keys_of(watched), "it resumes")
            assert len(keys_of(watched)) == COUNT + 1
            assert watched.troubles == []


def test_a_tail_over_the_death_of_the_console_goes_on_where_it_was(
    open_page: OpenPage, tmp_path: Path
) -> None:
    flags = ("--port", str(free_port()))
    with BrokerProcess(tmp_path / "data") as broker, Producer(broker.address) as producer:
        producer.send("orders", Message(b"before", keys=["before"]))
        with ConsoleProcess(broker.address, *flags) as console:
            watched = open_page(console.url)
            watched.open("/messages?topic=orders&live=1")
            watched.page.wait_for_selector("#tail-state.good")
            producer.send("orders", Message(b"order", keys=["first"]))
            poll(lambda: _wait(watched) and keys_of(watched) == ["first"], "the first one comes")
            console.kill()
        keys = [f"k{number}" for number in range(20)]
        for key in keys:
            producer.send("orders", Message(b"order", keys=[key]))
        with ConsoleProcess(broker.address, *flags):
            poll(lambda: _wait(watched) and len(keys_of(watched)) > len(keys), "it goes on")
            assert sorted(keys_of(watched)) == sorted(["first", *keys])
            # Chromium tells of the connection that broke, and of those that were refused.
            assert all("ERR_" in one for one in watched.troubles), watched.troubles


def _wait(watched: WatchedPage) -> bool:
    """Gives the browser its turn."""
    watched.page.wait_for_timeout(50)
    return True


def test_a_flood_is_skipped_and_counted(open_page: OpenPage, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Producer(broker.address) as producer:
        producer.send("flood", "first")
        with ConsoleProcess(broker.address) as running:
            watched = open_page(running.url)
            watched.open("/messages?topic=flood&live=1")
            page = watched.page
            page.wait_for_selector("#tail-state.good")
            page.wait_for_timeout(600)
            count = 30_000
            producer.send_many("flood", [b"x" * 20] * count)

            def told() -> int:
                texts = page.inner_text("#tail-count"), page.inner_text("#tail-skipped")
                return sum(int(one.split()[0].replace(",", "")) for one in texts if one)

            poll(lambda: _wait(watched) and told() >= count, "all are shown or counted")
            assert told() == count
            assert page.locator("#tail-rows tr").count() <= 500
            assert "skipped" in page.inner_text("#tail-skipped")
            assert watched.troubles == []
