"""Nodes of one broker set on one event loop, with real sockets and real files."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from mq.clock import SystemClock
from mq.errors import (
    FlowControl,
    IllegalMembership,
    MessageTooLarge,
    MqError,
    NodeStopped,
    NotLeader,
    OutcomeUnknown,
    PortUnavailable,
    StorageFailed,
)
from mq.raft.contracts import Leadership, Limits, Role, Settings
from mq.raft.node import Disk, Node
from mq.raft.vote import VoteFile
from mq.store.batch import encode_payload
from mq.store.flush import Flusher
from mq.store.format import Kind
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from tests.support.raft_cluster import free_port
from tests.support.stores import StoreMachine, batch, messages_of, read_all, small_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

DEADLINE_S = 20
LIMITS = Limits(entry_bytes_max=10_000, proposals_max=50, proposals_bytes_max=100_000)


class Member:
    """One node with what is on its disk; a context manager."""

    def __init__(self, directory: Path, settings: Settings, *, flush_ms: int | None = None) -> None:
        vfs, name = RealVfs(), settings.node_id
        self.name = name
        self.address = settings.members.get(name)
        identity = Identity("mq", "set-0", name)
        self.store = Store(
            vfs, str(directory / name), small_config(segment_bytes=64 << 10), identity
        )
        self.vote = VoteFile(vfs, str(directory / name / "vote"))
        self.flusher = Flusher(self.store.log, async_flush_ms=flush_ms, now_s=time.monotonic)
        self.leaderships: list[Leadership] = []
        disk = Disk(self.store.log, self.vote, self.flusher)
        self.machine = StoreMachine(self.store)
        self.node = Node(settings, identity, disk, SystemClock())

    async def start(self, listen: str | None) -> None:
        await self.node.start(listen, self.machine, self.leaderships.append)

    async def close(self) -> None:
        await self.node.stop()
        self.flusher.close()
        self.store.close()
        self.vote.close()


@contextlib.asynccontextmanager
async def group(
    directory: Path, count: int, *, flush_ms: int | None = None
) -> AsyncIterator[list[Member]]:
    members = {f"n{i}": f"127.0.0.1:{free_port()}" for i in range(count)}
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for name, address in members.items():
            settings = Settings(name, members, counts_unsynced=flush_ms is not None, limits=LIMITS)
            member = Member(directory, settings, flush_ms=flush_ms)
            stack.push_async_callback(member.close)
            await member.start(address if count > 1 else None)
            nodes.append(member)
        yield nodes


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while not (found := condition()):  # noqa: ASYNC110 - conditions of others, polled
            await asyncio.sleep(0.005)
        return found


async def leader_of(nodes: list[Member]) -> Member:
    def found() -> Member | None:
        return next((each for each in nodes if leads(each)), None)

    member: Member = await until(found)
    return member


def leads(member: Member) -> bool:
    return member.node.leadership.role == Role.LEADER and member.node.is_ready


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S * 2))


def recorded(target: object, method: str) -> list[Any]:
    """The calls of the method from now on."""
    calls: list[Any] = []
    original = getattr(target, method)

    def record(argument: Any) -> Any:
        calls.append(argument)
        return original(argument)

    setattr(target, method, record)
    return calls


async def all_applied(nodes: list[Member], raft_index: int) -> None:
    await until(lambda: all(each.store.applied_index >= raft_index for each in nodes))


def entries(count: int, size: int = 100) -> Iterator[list[bytes]]:
    return ([b"%d." % i + bytes(size)] for i in range(count))


# -- proposing -------------------------------------------------------------------------------------


def test_an_entry_proposed_to_the_leader_is_applied_by_all_nodes(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            sent = messages_of(5)
            batches = [batch(sent)]
            payload = encode_payload(batches)
            committed = await leader.node.propose(Kind.MESSAGES, payload, batches)
            assert (committed.raft_index, committed.term) == (3, leader.node.leadership.term)
            await all_applied(nodes, committed.raft_index)
            assert all(read_all(member.store) == sent for member in nodes)

    run(test())


def test_everything_proposed_in_one_turn_of_the_loop_is_one_append(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (alone,):
            await leader_of([alone])
            written = recorded(alone.store.log, "append")
            futures = [alone.node.propose(Kind.COMMAND, each) for each in entries(20)]
            done = await asyncio.gather(*futures)
            assert [len(news) for news in written] == [20]
            assert [each.raft_index for each in done] == list(range(3, 23))

    run(test())


def test_a_follower_refuses_and_names_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            follower = next(each for each in nodes if each is not leader)
            await until(lambda: follower.node.leadership.leader_id)
            for attempt in (
                follower.node.propose(Kind.COMMAND, [b"x"]),
                follower.node.add_member("n9", "127.0.0.1:1"),
                follower.node.remove_member("n0"),
            ):
                with pytest.raises(NotLeader) as caught:
                    await attempt
                # The address that Raft knows is none for clients.
                assert (caught.value.leader, caught.value.address) == (leader.name, None)

    run(test())


def test_too_much_and_too_large_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (alone,):
            await leader_of([alone])
            last_index = alone.store.log.last_index
            with pytest.raises(MessageTooLarge):
                await alone.node.propose(Kind.COMMAND, [bytes(10_001)])
            assert alone.store.log.last_index == last_index
            futures = [alone.node.propose(Kind.COMMAND, [b"x"]) for _ in range(60)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert sum(isinstance(each, FlowControl) for each in results) == 10
            assert alone.store.log.last_index == last_index + 50
            # There is room again.
            await alone.node.propose(Kind.COMMAND, [b"x"])

    run(test())


def test_what_is_submitted_hears_of_its_outcome_once_and_later(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (alone,):
            await leader_of([alone])
            last_index = alone.store.log.last_index
            told: list[MqError | None] = []
            for size in (1, 10_001, 1):
                alone.node.submit(Kind.COMMAND, [bytes(size)], (), told.append)
            assert told == []
            await until(lambda: len(told) == 3)
            assert alone.store.applied_index == last_index + 2
            assert sorted(type(one).__name__ for one in told) == [
                "MessageTooLarge",
                *["NoneType"] * 2,
            ]

    run(test())


def test_segments_roll_while_proposals_come(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            for _ in range(8):
                await asyncio.gather(
                    *(leader.node.propose(Kind.COMMAND, each) for each in entries(10, 2000))
                )
            last_index = leader.store.log.last_index
            await all_applied(nodes, last_index)
            assert all(len(member.store.log.segments()) > 2 for member in nodes)
            start, end = leader.store.log.start_offset, leader.store.log.end_offset
            logs = {member.store.log.read(start, end - start) for member in nodes}
            assert len(logs) == 1

    run(test())


# -- leadership ------------------------------------------------------------------------------------


def test_a_planned_stop_moves_the_leadership_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            await asyncio.gather(*(leader.node.propose(Kind.COMMAND, e) for e in entries(10)))
            await leader.node.stop()
            others = [each for each in nodes if each is not leader]
            # By the time it has stopped, or a moment later: no time-out was waited for.
            assert leader.leaderships[-1].role == Role.FOLLOWER
            new = await leader_of(others)
            assert new.node.leadership.term == leader.leaderships[-1].term
            with pytest.raises(NodeStopped):
                await leader.node.propose(Kind.COMMAND, [b"x"])
            await new.node.propose(Kind.COMMAND, [b"x"])

    run(test())


def test_changes_of_the_role_are_reported(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            assert leader.leaderships[-1].leader_id == leader.name
            roles = [each.role for each in leader.leaderships]
            assert roles[-2:] == [Role.CANDIDATE, Role.LEADER]
            status = leader.node.status()
            assert status.leadership == leader.leaderships[-1]
            assert {each.node_id for each in status.followers} == {
                each.name for each in nodes if each is not leader
            }

    run(test())


def test_a_leader_without_a_majority_steps_down_and_answers_its_callers(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            for other in nodes:
                if other is not leader:
                    await other.node.stop()
            future = leader.node.propose(Kind.COMMAND, [b"x"])
            with pytest.raises((OutcomeUnknown, NotLeader)):
                await future
            assert leader.node.leadership.role != Role.LEADER

    run(test())


# -- disks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush_ms", [None, 20])
def test_a_leader_whose_disk_fails_gives_up_and_another_leads(
    tmp_path: Path, flush_ms: int | None
) -> None:
    async def test() -> None:
        async with group(tmp_path, 3, flush_ms=flush_ms) as nodes:
            leader = await leader_of(nodes)

            def fail() -> int:
                raise StorageFailed("the disk is gone")

            leader.store.log.sync = fail  # type: ignore[method-assign]
            future = leader.node.propose(Kind.COMMAND, [b"x"])
            failure = await leader.node.failed()
            assert isinstance(failure, StorageFailed)
            if flush_ms is None:
                with pytest.raises(OutcomeUnknown):
                    await future
            with pytest.raises(NodeStopped):
                await leader.node.propose(Kind.COMMAND, [b"x"])
            others = [each for each in nodes if each is not leader]
            await (await leader_of(others)).node.propose(Kind.COMMAND, [b"y"])

    run(test())


# -- members ---------------------------------------------------------------------------------------


def test_a_node_joins_is_counted_and_leaves(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 3) as nodes:
            leader = await leader_of(nodes)
            await asyncio.gather(*(leader.node.propose(Kind.COMMAND, e) for e in entries(40)))
            address = f"127.0.0.1:{free_port()}"
            contacts = {**leader.node.status().members, "n3": address}
            settings = Settings("n3", contacts, is_joining=True, limits=LIMITS)
            joiner = Member(tmp_path, settings)
            try:
                await joiner.start(address)
                await leader.node.add_member("n3", address)
                assert "n3" in leader.node.status().members
                await until(lambda: "n3" in joiner.node.status().members)
                with pytest.raises(IllegalMembership):
                    await leader.node.add_member("n3", address)
                await until(lambda: not joiner.node.status().must_catch_up)
                await leader.node.remove_member("n3")
                assert "n3" not in leader.node.status().members
                await leader.node.propose(Kind.COMMAND, [b"x"])
            finally:
                await joiner.close()

    run(test())


def test_a_node_that_does_not_come_can_be_given_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, 1) as (alone,):
            await leader_of([alone])
            future = alone.node.add_member("n1", f"127.0.0.1:{free_port()}")
            with pytest.raises(IllegalMembership, match="one change at a time"):
                await alone.node.add_member("n2", "127.0.0.1:1")
            future.cancel()
            await until(future.done)
            await asyncio.sleep(0)
            second = alone.node.add_member("n2", "127.0.0.1:1")
            second.cancel()
            await alone.node.propose(Kind.COMMAND, [b"x"])
            assert list(alone.node.status().members) == ["n0"]

    run(test())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        members = {"n0": f"127.0.0.1:{port}", "n1": "127.0.0.1:1"}
        member = Member(tmp_path, Settings("n0", members))
        try:
            with pytest.raises(PortUnavailable, match=str(port)):
                await member.start(f"127.0.0.1:{port}")
        finally:
            await member.close()
            server.close()
            await server.wait_closed()

    run(test())


def test_a_restarted_group_applies_from_its_checkpoint_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[tuple[int, int]] = []
    apply_through = StoreMachine.apply_through

    def record(machine: StoreMachine, raft_index: int) -> None:
        applied.append((machine.applied_index, raft_index))
        apply_through(machine, raft_index)

    async def test() -> None:
        async with group(tmp_path, 1) as (alone,):
            await leader_of([alone])
            for payload in entries(5):
                await alone.node.propose(Kind.COMMAND, payload)
        monkeypatch.setattr(StoreMachine, "apply_through", record)
        async with group(tmp_path, 1) as (alone,):
            await leader_of([alone])
            # Only its own first entry is new.
            assert applied == [(7, 8)]

    run(test())
