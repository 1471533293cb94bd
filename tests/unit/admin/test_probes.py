"""Probes: which state of a node is answered by which status."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from mq.admin import probes
from mq.admin.probes import Probes

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def scrape(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    start("200 OK", [])
    return [environ["PATH_INFO"].encode()]


def get(asked: Probes, path: str) -> tuple[str, str]:
    statuses: list[str] = []
    answer = asked.before(scrape)({"PATH_INFO": path}, lambda status, *_: statuses.append(status))  # type: ignore[arg-type]
    return statuses[0][:3], b"".join(answer).decode()


def ask(path: str, *, is_ready: bool) -> tuple[str, str]:
    async def asked() -> tuple[str, str]:
        node = Probes(asyncio.get_running_loop(), lambda: is_ready)
        return await asyncio.to_thread(get, node, path)

    return asyncio.run(asked())


def test_a_node_without_a_leader_lives_and_is_not_ready() -> None:
    assert ask("/livez", is_ready=False) == ("200", "ok\n")
    status, text = ask("/readyz", is_ready=False)
    assert status == "503"
    assert "knows no leader" in text


def test_a_node_that_is_ready_says_so_and_other_paths_are_scrapes() -> None:
    assert ask("/readyz", is_ready=True) == ("200", "ok\n")
    assert ask("/metrics", is_ready=False) == ("200", "/metrics")


def test_a_loop_that_does_not_turn_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_ANSWER_S", 0.01)
    loop = asyncio.new_event_loop()
    try:
        status, text = get(Probes(loop, lambda: True), "/livez")
    finally:
        # What was asked is never answered.
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert status == "503"
    assert "has not turned" in text
    assert get(Probes(loop, lambda: True), "/livez") == ("503", "the node is stopping\n")
