"""The composition root: the only place where configuration, clock, files and services meet.

Start, in order: the data directory and its log, the flusher, the broker, replication (which applies
the log), services, metrics, housekeeping. Stop is the reverse: requests under way are answered,
leadership is handed over, everything is synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import os
import signal
import socket
import sys
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from mq import descriptors, hints, memory
from mq.admin.bootstrap import Bootstrap
from mq.admin.certificates import CertificateWatch
from mq.admin.console_process import ConsoleProcess
from mq.admin.control import Control
from mq.admin.metrics import Metrics
from mq.broker.broker import Broker
from mq.broker.contracts import Leading, Peer
from mq.broker.core import BrokerSettings
from mq.broker.security.key_files import BrokerKeys, ClusterKeys, secret_box
from mq.broker.state.held_replay import LaneReplay
from mq.broker.state.machine import Machine
from mq.broker.state.state import State
from mq.cli.ports import is_free
from mq.clock import Clock, SystemClock
from mq.config import Config
from mq.errors import DiskFull, IllegalConfig, MqError, NodeStopped
from mq.logging import get_logger
from mq.raft import settings as raft_settings
from mq.raft.handshake import Presence
from mq.raft.node import Disk
from mq.raft.node import Node as RaftNode
from mq.raft.vote import VoteFile
from mq.rpc import tls as rpc_tls
from mq.rpc.greeting import Greeter
from mq.rpc.mending import Mender, Others
from mq.rpc.server import RpcServer
from mq.rpc.tls import Connect, ListenerTls
from mq.store.damage import DamageLog
from mq.store.flush import Flusher
from mq.store.format import Kind
from mq.store.identity import Identity
from mq.store.retention import Policy
from mq.store.scrub import PAUSE_S_MAX, Scrubber
from mq.store.store import Store
from mq.store.vfs import RealVfs

log = get_logger(__name__)

_PROGRESS_S = 2.0
_TICK_S = 0.2
_READY_S = 0.02
# At the least between two checkpoints, also when the disk has no room for one.
_CHECKPOINT_S = 1.0


def run(config: Config) -> None:
    """Runs the node until SIGTERM or SIGINT. Raises MqError when it cannot start or has to stop."""
    memory.keep_freed_memory()
    memory.collect_seldom()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(config))
    except Exception as error:
        if not memory.is_exhausted(error):
            raise
        # What was half done is done by the next start.
        raise NodeStopped(memory.EXHAUSTED) from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, as by the extra of that name; None: asyncio's."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop]
    factory = importlib.import_module("uvloop").new_event_loop
    return factory


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(config, SystemClock())
    # Without TLS it ends the process, as a terminal does that is closed.
    if config.broker.tls_cert or config.raft.tls_cert:
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    await server.run(stop)


@dataclass(slots=True)
class Parts:
    """The parts of a running node. The address is the one that clients are told to connect to."""

    store: Store
    raft: RaftNode
    broker: Broker
    rpc: RpcServer
    address: str
    metrics_port: int


class _Consensus:
    """Replication, as the broker sees it."""

    def __init__(self, raft: RaftNode) -> None:
        self._raft = raft

    @property
    def leading_term(self) -> int:
        return self._raft.leading_term

    @property
    def leading(self) -> Leading:
        _, term, leader_id = self._raft.leadership
        presence = self._raft.presences.get(leader_id) if leader_id else None
        if presence is None:
            return Leading(term, leader_id, None)
        return Leading(term, leader_id, presence.client_address, presence.external_address)

    @property
    def peers(self) -> Sequence[Peer]:
        presences, status = self._raft.presences, self._raft.status()
        matches = {one.node_id: one.match_index for one in status.followers if one.is_voter}
        return [
            Peer(one, *presences.get(one, Presence()), match_index=matches.get(one, 0))
            for one in sorted(status.members)
        ]

    def propose(
        self,
        kind: Kind,
        payload: Sequence[bytes | memoryview],
        context: object,
        done: Callable[[MqError | None], None],
    ) -> None:
        self._raft.submit(kind, payload, context, done)


class Server:
    def __init__(self, config: Config, clock: Clock) -> None:
        self._settings = BrokerSettings(config, time.monotonic)
        self._clock = clock
        self._is_up = False
        self._has_console = False
        self._certificates: CertificateWatch | None = None

    @property
    def _config(self) -> Config:
        return self._settings.config

    async def run(self, stop: asyncio.Event) -> None:
        """Returns when `stop` is set and everything is on disk."""
        async with self.started() as parts:
            await self._serve(parts, stop)
        log.info("node is down")

    def reload(self) -> None:
        """Reads the files of certificates at once."""
        if self._certificates is not None:
            self._certificates.ask()

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncGenerator[Parts, None]:
        """A node that follows or leads; everything is on disk at the end."""
        node = self._config.node
        check_doors(self._config)
        identity = Identity(node.cluster, node.broker_set, node.id)
        settings, listen, raft_tls = raft_settings.from_config(self._config)
        tls = rpc_tls.from_config(self._config.broker, self._config.metrics.tls)
        certificates = [one for one in (tls.certificates, raft_tls) if one is not None]
        self._certificates = CertificateWatch(certificates)
        cluster_keys = _cluster_keys(self._config)
        vfs = RealVfs()
        async with contextlib.AsyncExitStack() as stack:
            state = State()
            store, disk = self._open_disk(vfs, identity, state, stack)
            machine = Machine(state, store)
            raft = RaftNode(settings, identity, disk, self._clock, tls=raft_tls)
            consensus = _Consensus(raft)
            is_async = self._config.store.flush == "async"
            until_durable = None if is_async else _until_durable(disk.flusher)
            broker = Broker(
                self._settings,
                machine,
                consensus,
                self._clock.now_ms,
                until_durable,
                _random_numbers().__next__,
                BrokerKeys(secret_box(self._config.auth.secret_key_file), cluster_keys.accepts),
            )
            bootstrap = Bootstrap(broker, node.data, self._config.auth.bootstrap_admin_file)
            metrics = Metrics()
            control = Control(broker, raft, vfs)
            limit = self._connections_max()
            rpc = RpcServer(broker, identity, control, metrics.observe, limit, tls)
            scrubber = self._scrubber(store)
            metrics.watch(
                broker,
                raft.status,
                rpc.connections,
                scrubber,
                certificates,
                lambda: raft.is_ready and raft.status().is_voter,
            )
            stack.callback(metrics.stop_watching)
            options = self._config.broker
            port = rpc.bind(options.host, options.port)
            address = options.advertised or f"{_reachable(options.host)}:{port}"
            external = self._open_external(rpc)
            raft.introduce(Presence(address, options.zone, external))
            await raft.start(listen, broker, lambda _: broker.on_leadership())
            stack.push_async_callback(raft.stop)
            await rpc.start()
            stack.push_async_callback(rpc.stop, options.drain_ms / 1000)
            # First of all: clients that are sent away have a leader to go to.
            stack.push_async_callback(raft.step_aside)
            # And before that, their progress is in the log.
            stack.push_async_callback(broker.commits.flush)
            greeter = _greeter(broker, tls.connect, cluster_keys)
            mender = Mender(store, vfs, node.id, _others(raft, tls.connect, cluster_keys))
            work = [greeter.run(), mender.run(), bootstrap.run(), rpc.connections.run()]
            for one in (*work, self._certificates.run(), _scrub(scrubber)):
                stack.callback(asyncio.create_task(one).cancel)
            metrics_port = self._serve_metrics(metrics, tls.metrics, stack)
            self._start_console(address, stack)
            yield Parts(store, raft, broker, rpc, address, metrics_port)

    def _open_disk(
        self, vfs: RealVfs, identity: Identity, state: State, stack: contextlib.AsyncExitStack
    ) -> tuple[Store, Disk]:
        data, config = self._config.node.data, self._config.store
        store = Store(
            vfs,
            data,
            config,
            identity,
            broker_state=state.encode,
            start_held_replay=LaneReplay,
            damage=DamageLog(self._clock.now_ms),
        )
        stack.push_async_callback(asyncio.to_thread, store.close)
        vote = VoteFile(vfs, f"{data}/vote")
        stack.callback(vote.close)
        interval_ms = config.async_flush_ms if config.flush == "async" else None
        flusher = Flusher(store.log, async_flush_ms=interval_ms, now_s=time.monotonic)
        stack.callback(flusher.close)
        return store, Disk(store.log, vote, flusher)

    def _connections_max(self) -> int:
        """The limit of client connections, for each listener."""
        options = self._config.broker
        return descriptors.connections_max(
            options.connections_max,
            descriptors.claim(),
            listeners=2 if options.external_listen else 1,
        )

    def _open_external(self, rpc: RpcServer) -> str:
        """The address that clients of the second listener are told to connect to; empty: there is
        none.
        """
        options = self._config.broker
        if not options.external_listen:
            return options.external_advertised
        host, _, port = options.external_listen.rpartition(":")
        bound = rpc.bind_external(host.strip("[]"), int(port))
        return options.external_advertised or f"{_reachable(host)}:{bound}"

    def _scrubber(self, store: Store) -> Scrubber:
        return Scrubber(
            store.log,
            lambda: store.applied_index,
            lambda: self._config.store.scrub_bytes_per_s,
            time.monotonic,
        )

    def _serve_metrics(
        self, metrics: Metrics, tls: ListenerTls | None, stack: contextlib.AsyncExitStack
    ) -> int:
        if self._config.metrics.enabled == "no":
            return 0
        options = self._config.metrics
        port = metrics.start(options.host, options.port, tls.context if tls is not None else None)
        stack.push_async_callback(asyncio.to_thread, metrics.stop)
        return port

    def _start_console(self, address: str, stack: contextlib.AsyncExitStack) -> None:
        options = self._config.console
        if not options.port:
            return
        # The console itself waits for the port: that of a broker that was killed may be ending.
        self._has_console = is_free(options.host, options.port)
        if not self._has_console:
            log.warning(
                "the port of the console is taken: --console-port can name another",
                host=options.host,
                port=options.port,
            )
        process = ConsoleProcess(
            address,
            options.host,
            options.port,
            is_open=self._config.auth.open == "yes",
            environment=hints.security_variables(self._config.broker),
        )
        task = asyncio.create_task(process.run())

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stack.push_async_callback(end)

    async def _serve(self, parts: Parts, stop: asyncio.Event) -> None:
        work: list[Awaitable[object]] = [
            self._announce(parts),
            self._do_housekeeping(parts),
            self._drive(parts),
            self._watch(parts),
            stop.wait(),
        ]
        tasks = [asyncio.ensure_future(each) for each in work]
        *_, stopped = tasks
        try:
            # A part that fails ends all; only `stop` ends without an error.
            for done in asyncio.as_completed([*tasks[1:]]):
                await done
                if stopped.done():
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, parts: Parts) -> None:
        raise await parts.raft.failed()

    async def _drive(self, parts: Parts) -> None:
        """Gives the broker its time, and tells health checks how it is."""
        was_ready: bool | None = None
        while True:
            parts.broker.tick()
            is_ready = parts.raft.is_ready
            if is_ready != was_ready:
                parts.rpc.set_health(is_serving=is_ready)
                was_ready = is_ready
            await asyncio.sleep(_TICK_S)

    async def _announce(self, parts: Parts) -> None:
        """Says when there is a leader and everything that is committed is applied. Shows progress
        when that takes long.
        """
        store, raft = parts.store, parts.raft
        loop = asyncio.get_running_loop()
        shown = loop.time()
        while not raft.is_ready:
            await asyncio.sleep(_READY_S)
            if loop.time() - shown > _PROGRESS_S:
                shown = loop.time()
                status = raft.status()
                log.info(
                    "applying the log" if status.leadership.leader_id else "waiting for a leader",
                    applied=status.applied_index,
                    of=status.last_index,
                    members=sorted(status.members),
                )
        self._is_up = True
        role, term, leader = raft.leadership
        log.info(
            "node is up",
            address=parts.address,
            metrics_port=parts.metrics_port,
            data=self._config.node.data,
            role=role.name.lower(),
            term=term,
            leader=leader,
            queues=len(store.queues),
            entries=store.log.last_index,
            log_bytes=store.log.end_offset - store.log.start_offset,
        )
        if sys.stderr.isatty():
            security = hints.security_variables(self._config.broker)
            console = self._config.console
            url = f"http://{_reachable(console.host)}:{console.port}" if self._has_console else ""
            sys.stderr.write(hints.first_steps(parts.address, hints.program(), security, url))

    async def _do_housekeeping(self, parts: Parts) -> None:
        """Checkpoints when they are due, retention at its interval, for ever."""
        store, loop = parts.store, asyncio.get_running_loop()
        next_check = next_checkpoint = 0.0
        while True:
            # Before it is up, most of the log may not be applied yet and has to stay anyway.
            if self._is_up and loop.time() >= next_check:
                await self._retain(parts)
                next_check = loop.time() + self._config.retention.check_ms / 1000
            if store.is_checkpoint_due and loop.time() >= next_checkpoint:
                await self._checkpoint(store)
                next_checkpoint = loop.time() + _CHECKPOINT_S
            await asyncio.sleep(_TICK_S)

    async def _retain(self, parts: Parts) -> None:
        """Held messages are written again before the segments that hold them are dropped: by the
        leader; followers wait until that entry arrives.
        """
        store, broker, policy = parts.store, parts.broker, self._policy()
        staying = store.expiring_before(policy, self._clock.now_ms())
        if staying and broker.leadership.is_serving:
            try:
                with store.ignoring_disk_limit():
                    await broker.carry(staying)
            except MqError as error:
                log.warning("segments stay, for messages that wait in them", error=str(error))
        dropped = store.retain(policy, self._clock.now_ms(), broker.needs_log_before)
        broker.on_dropped(dropped.moved)
        # Also what a failed attempt has left.
        await asyncio.to_thread(store.log.remove_released)

    def _policy(self) -> Policy:
        retention = self._config.retention
        return Policy(
            age_ms_max=retention.hours * 3_600_000,
            total_bytes_max=retention.bytes,
            clean_expired_ratio=retention.clean_expired_ratio,
            clean_oldest_ratio=retention.clean_oldest_ratio,
            refuse_writes_ratio=retention.refuse_writes_ratio,
        )

    async def _checkpoint(self, store: Store) -> None:
        plan = store.plan_checkpoint()
        try:
            await asyncio.to_thread(store.write_checkpoint, plan)
        except DiskFull as error:
            log.warning("no checkpoint, a start would replay more", error=str(error))
        except MqError:
            log.exception("checkpoint failed, the node has to stop")
            raise
        else:
            store.finish_checkpoint(plan)


def check_doors(config: Config) -> None:
    """Raises IllegalConfig if clients of other machines would be served without being known, and
    nothing says that this is meant.
    """
    if config.auth.mode != "off" or config.auth.open == "yes":
        return
    external, _, _ = config.broker.external_listen.rpartition(":")
    for option, host in (("broker.host", config.broker.host), ("broker.external_listen", external)):
        if host and not _is_loopback(host.strip("[]")):
            raise IllegalConfig(
                f"{option} = {host} lets clients of other machines in, who could read and delete "
                "everything: auth.mode is off. Let callers be known with auth.mode = required "
                "(docs/SECURITY.md), or say that this is meant with auth.open = yes "
                "(--auth-open yes, MQ_AUTH_OPEN=yes)"
            )


def _is_loopback(host: str) -> bool:
    """A name that cannot be resolved is not: binding to it fails later, with its reason."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def _cluster_keys(config: Config) -> ClusterKeys:
    """The keys by which this broker knows others, and is known."""
    is_alone = (
        "," not in config.raft.members and config.raft.join == "no" and not config.broker.seeds
    )
    if config.auth.mode == "required" and not config.auth.cluster_key_file and not is_alone:
        log.warning(
            "brokers refuse each other: they need auth.cluster_key_file, the same on all, or "
            "certificates of users that may"
        )
    return ClusterKeys(config.auth.cluster_key_file, time.monotonic)


def _greeter(broker: Broker, connect: Connect, cluster_keys: ClusterKeys) -> Greeter:
    return Greeter(broker.directory, broker.steady_ms, connect, lambda: cluster_keys.metadata)


def _others(raft: RaftNode, connect: Connect, cluster_keys: ClusterKeys) -> Others:
    consensus = _Consensus(raft)
    return Others(
        lambda: consensus.peers,
        connect,
        lambda: bool(consensus.leading_term),
        raft.transfer_leadership,
        lambda: cluster_keys.metadata,
    )


async def _scrub(scrubber: Scrubber) -> None:
    """Reads on a worker thread, for ever. What it finds, the mender mends."""
    while True:
        pause_s = PAUSE_S_MAX
        try:
            step = scrubber.begin()
            if step is not None:
                scrubber.finish(step, await asyncio.to_thread(step.check))
                pause_s = scrubber.pause_s
        except Exception:
            log.exception("the log is not scrubbed by a mistake of the broker")
        await asyncio.sleep(pause_s)


def _until_durable(flusher: Flusher) -> Callable[[int], Awaitable[object]]:
    return lambda log_offset: asyncio.wrap_future(flusher.wait(log_offset))


def _reachable(host: str) -> str:
    """A name for clients: "all interfaces" is none."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared only
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _random_numbers() -> Iterator[int]:
    """Numbers of 64 bits that cannot be guessed: the system is asked for many at once."""
    while True:
        yield from array("Q", os.urandom(4_096))
