"""Conditions on which a node gives up on damage, and a leader transfers its leadership; mending by
another node is in tests/cluster/test_rot.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable

import pytest

from mq.broker.contracts import Peer
from mq.errors import MessagesDamaged
from mq.rpc import mending
from mq.rpc.mending import Mender, Others
from mq.rpc.tls import BrokerChannel
from mq.store.store import Store
from tests.support.raft_cluster import free_port
from tests.support.stores import fill, new_store, reopen

DEADLINE_S = 20.0


class Scene:
    """A store with a damaged entry, and a node that cannot be reached."""

    def __init__(self, *, is_leading: bool = True) -> None:
        self.vfs, store = new_store()
        fill(store, 3)
        self.store: Store = reopen(self.vfs)
        self.start, self.end = self.store.log.place_of(3)
        self.vfs.flip_bit(self.store.log.segments()[0].path, self.end - 1)
        self.peers = [Peer("b", f"127.0.0.1:{free_port()}", "")]
        self.handed_over = 0
        self.asked = 0
        self._is_leading = is_leading

    def find(self) -> None:
        with pytest.raises(MessagesDamaged):
            self.store.log.read_ranges([(self.start, self.end)])

    def run_until(self, question: Callable[[], bool], *, is_found_later: bool = False) -> None:
        if not is_found_later:
            self.find()
        asyncio.run(self._run_until(question, is_found_later=is_found_later))

    async def _run_until(self, question: Callable[[], bool], *, is_found_later: bool) -> None:
        others = Others(self._ask_peers, BrokerChannel, lambda: self._is_leading, self._hand_over)
        task = asyncio.create_task(Mender(self.store, self.vfs, "a", others).run())
        if is_found_later:
            await asyncio.sleep(0)  # the first pass finds nothing to do
            await asyncio.to_thread(self.find)
        async with asyncio.timeout(DEADLINE_S):
            while not question():  # noqa: ASYNC110 - a question about the store
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _ask_peers(self) -> list[Peer]:
        self.asked += 1
        return self.peers

    def _hand_over(self) -> bool:
        self.handed_over += 1
        return True

    def has_tried(self, times: int) -> bool:
        return self.asked >= times


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "_BACKOFF_S", 0.01)
    monkeypatch.setattr(mending, "_LEADS_S", 0.0)


def test_messages_that_an_absent_node_may_have_are_not_lost() -> None:
    scene = Scene()
    scene.run_until(functools.partial(scene.has_tried, 3))
    assert not scene.store.damage.is_lost(scene.start)


def test_a_leader_that_cannot_mend_its_log_hands_over_once() -> None:
    scene = Scene()
    scene.run_until(functools.partial(scene.has_tried, 4))
    assert scene.handed_over == 1


def test_a_leader_tries_for_some_seconds_before_it_hands_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mending, "_LEADS_S", 3600.0)
    scene = Scene()
    scene.run_until(functools.partial(scene.has_tried, 4))
    assert scene.handed_over == 0


def test_a_follower_has_nothing_to_hand_over() -> None:
    scene = Scene(is_leading=False)
    scene.run_until(functools.partial(scene.has_tried, 4))
    assert scene.handed_over == 0


@pytest.mark.parametrize("is_found_later", [False, True])
def test_a_node_alone_loses_damaged_entries_and_names_their_messages(
    *, is_found_later: bool
) -> None:
    scene = Scene()
    scene.peers.clear()
    scene.run_until(lambda: scene.store.damage.is_lost(scene.start), is_found_later=is_found_later)
    (record,) = scene.store.damage.records()
    assert record.is_lost
    assert record.affected.startswith("orders/0: ")
