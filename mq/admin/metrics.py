"""Metrics for Prometheus, on a port of their own.

The broker counts with plain integers on its loop. A scrape comes on a thread of the HTTP server,
asks the loop for a picture, and waits for it: no lock, and nothing to keep up to date between
scrapes.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Protocol, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mq.admin.control import rss_bytes
from mq.admin.histogram import Histogram
from mq.admin.loop_lag import LoopLag
from mq.admin.probes import Probes
from mq.broker.broker import Broker
from mq.errors import PortUnavailable
from mq.logging import get_logger
from mq.raft.contracts import Role, Status
from mq.store.damage import DamageKind, DamageLog
from mq.tls import Certificates

log = get_logger(__name__)

_SCRAPE_S = 5.0
_REQUEST_S = 10.0
_TOPICS_MAX = 1_000  # a line each
_AGES_MAX = 256  # a look at a message each, on the broker's loop
_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class Connections(Protocol):
    """Client connections of one listener: their number, and its limit."""

    @property
    def count(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def kinds(self) -> Mapping[tuple[str, str], int]:
        """By language and version of the client; few."""
        ...


class Scrubbing(Protocol):
    """Progress of scrubbing the log: bytes read, and time since the last full pass."""

    @property
    def scrubbed_bytes_total(self) -> int: ...
    @property
    def age_s(self) -> float: ...


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._latencies: dict[tuple[str, str], Histogram] = {}
        self._loop_lag = LoopLag()
        self._probes: Probes | None = None
        self._stop: Callable[[], None] = lambda: None

    def observe(self, method: str, seconds: float, code: str) -> None:
        """Once a call."""
        latency = self._latencies.get((method, code))
        if latency is None:
            latency = self._latencies[method, code] = Histogram(_LATENCY_BUCKETS_S)
        latency.observe(seconds)

    def watch(
        self,
        broker: Broker,
        raft_status: Callable[[], Status],
        connections: Connections,
        scrubbing: Scrubbing,
        certificates: Sequence[Certificates[Any]] = (),
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """On the loop; until `stop`. `is_ready` answers probes."""
        loop = asyncio.get_running_loop()
        self._probes = Probes(loop, is_ready)
        self._loop_lag.start()

        def picture() -> list[Metric]:
            return [
                _latency(self._latencies),
                _loop_lag(self._loop_lag.histogram),
                *_picture(broker, raft_status()),
                *_connections(connections),
                *_scrubbing(scrubbing),
                _certificates(certificates),
            ]

        self.registry.register(_OnLoop(loop, picture))

    def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> int:
        """The port that Prometheus connects to. `tls` is asked at each connection.

        PortUnavailable.
        """
        try:
            server = _Server(host, port, tls)
        except OSError as error:
            raise PortUnavailable(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}. Choose "
                "another port with --metrics-port, 0 for any, or switch them off with "
                "--metrics-enabled no"
            ) from None
        scrape = make_wsgi_app(self.registry)
        server.set_app(self._probes.before(scrape) if self._probes else scrape)
        thread = threading.Thread(target=server.serve_forever, name="mq-metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop = stop
        return int(server.server_port)

    def stop(self) -> None:
        """Waits for scrapes under way: not on the loop."""
        self._stop()

    def stop_watching(self) -> None:
        self._loop_lag.stop()


class _Request(WSGIRequestHandler):
    # A client that sends nothing keeps no thread.
    timeout = _REQUEST_S

    def log_message(self, *_: object) -> None:
        """Scrapes are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a request, which also does the handshake: a slow one holds up no other."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        self._tls = tls
        super().__init__(cast("tuple[str, int]", address[:2]), _Request)

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, address = super().get_request()
        if self._tls is None:
            return accepted, address
        try:
            return (
                self._tls().wrap_socket(accepted, server_side=True, do_handshake_on_connect=False),
                address,
            )
        except OSError:
            accepted.close()
            raise

    def handle_error(self, _: object, client: object) -> None:
        """For one that breaks off, or speaks something else."""
        log.debug("a scrape failed", client=str(client))


class _OnLoop(Collector):
    """Collects on the loop, for a scrape on another thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, picture: Callable[[], list[Metric]]
    ) -> None:
        self._loop = loop
        self._picture = picture

    def describe(self) -> list[Metric]:
        return []  # names are known; registering must not ask the loop

    def collect(self) -> Iterator[Metric]:
        async def ask() -> list[Metric]:
            return self._picture()

        if self._loop.is_closed():
            return
        yield from asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_SCRAPE_S)


def _latency(latencies: Mapping[tuple[str, str], Histogram]) -> Metric:
    family = HistogramMetricFamily(
        "mq_rpc_latency_seconds",
        "Time of a unary call, or of a whole stream.",
        labels=["method", "code"],
    )
    for labels, one in latencies.items():
        family.add_metric(labels, one.buckets(), one.seconds)
    return family


def _loop_lag(lag: Histogram) -> Metric:
    family = HistogramMetricFamily(
        "mq_loop_lag_seconds", "How late the loop of the broker gives a timer its turn."
    )
    family.add_metric([], lag.buckets(), lag.seconds)
    return family


def _picture(broker: Broker, raft: Status) -> Iterator[Metric]:
    yield from _counters(broker, raft)
    yield from _gauges(broker, raft)
    yield from _disk(broker)
    yield from _topics(broker)
    yield from _by_topic(broker)
    yield _denials(broker)
    yield from _access(broker)
    yield from _quotas(broker)
    yield from _damage(broker.store.damage, broker.puller.lost_total)
    yield from _transactions(broker)
    yield _by_follower(raft)
    yield from _sets(broker)
    if broker.leadership.is_serving:
        yield _stored(broker)
        yield from _lag(broker)
        yield from _failed(broker)


def _counters(broker: Broker, raft: Status) -> Iterator[Metric]:
    publisher, puller = broker.publisher, broker.puller
    counters: list[tuple[str, str, float]] = [
        ("mq_messages_in", "Messages taken from producers.", publisher.messages_total),
        ("mq_throughput_in_bytes", "Bytes of batches taken from producers.", publisher.bytes_total),
        ("mq_messages_out", "Messages given to consumers.", puller.messages_total),
        ("mq_throughput_out_bytes", "Bytes of messages given to consumers.", puller.bytes_total),
        (
            "mq_timing_delivered",
            "Delayed messages that this node has delivered.",
            broker.delays.delivered_total,
        ),
        (
            "mq_timing_dropped",
            "Delayed messages that were due for a topic that was deleted.",
            broker.delays.dropped_total,
        ),
        (
            "mq_follower_reads",
            "Reads that this node answered without leading.",
            puller.follower_reads_total,
        ),
        ("mq_raft_elections", "Elections that this node stood for.", raft.elections_total),
    ]
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value)


def _gauges(broker: Broker, raft: Status) -> Iterator[Metric]:
    publisher, store = broker.publisher, broker.store
    mean_bytes = publisher.bytes_total / max(1, publisher.messages_total)
    gauges: list[tuple[str, str, float]] = [
        ("mq_message_size_bytes", "Mean size of a message taken from producers.", mean_bytes),
        (
            "mq_in_flight_bytes",
            "Taken from producers, not committed yet.",
            publisher.in_flight_bytes,
        ),
        (
            "mq_unsent_bytes",
            "Deliveries and answers with messages that clients have not taken yet.",
            broker.unsent.held_bytes,
        ),
        (
            "mq_storage_size_bytes",
            "Size of the log.",
            store.log.end_offset - store.log.start_offset,
        ),
        (
            "mq_storage_flush_behind_bytes",
            "Written to the log, not synced.",
            max(0, store.log.end_offset - store.log.durable_offset),
        ),
        ("mq_storage_dispatch_behind_bytes", "In the log, not visible yet.", _unapplied(broker)),
        (
            "mq_timing_messages",
            "Delayed messages that wait for their time.",
            broker.state.schedule.messages,
        ),
        ("mq_groups", "Consumer groups.", len(broker.groups.names())),
        ("mq_group_members", "Consumers in groups.", broker.groups.member_count),
        ("mq_raft_term", "Term of this node.", raft.leadership.term),
        ("mq_raft_has_leader", "1 if a leader is known.", float(bool(raft.leadership.leader_id))),
        ("mq_raft_is_leader", "1 on the leader.", float(raft.leadership.role == Role.LEADER)),
        ("mq_raft_commit_index", "Last committed entry that this node knows.", raft.commit_index),
        ("process_resident_memory_bytes", "Memory in use.", rss_bytes()),
    ]
    for name, text, value in gauges:
        yield GaugeMetricFamily(name, text, value)


def _quotas(broker: Broker) -> Iterator[Metric]:
    labels = ["quota"]
    throttled = CounterMetricFamily(
        "mq_quota_throttled_seconds", "Time that callers were told to pause.", labels=labels
    )
    for quota, milliseconds in sorted(broker.quotas.throttled_ms.items()):
        throttled.add_metric([quota], milliseconds / 1000)
    refused = CounterMetricFamily(
        "mq_quota_refusals", "Calls and batches beyond a quota.", labels=labels
    )
    for quota, count in sorted(broker.quotas.refusals.items()):
        refused.add_metric([quota], count)
    yield from (throttled, refused)


def _denials(broker: Broker) -> Metric:
    family = CounterMetricFamily(
        "mq_auth_denials",
        "Calls that were refused, or would be if auth.mode were required.",
        labels=["reason", "enforced"],
    )
    for (reason, is_enforced), count in broker.denials.counts.items():
        family.add_metric([reason, "yes" if is_enforced else "no"], count)
    return family


def _access(broker: Broker) -> Iterator[Metric]:
    logins = CounterMetricFamily(
        "mq_logins_refused", "Logins with a wrong password, or too many.", labels=["reason"]
    )
    logins.add_metric(["wrong"], broker.logins.refused_total)
    logins.add_metric(["limited"], broker.logins.limited_total)
    yield logins
    yield CounterMetricFamily(
        "mq_audit_unrecorded",
        "Refusals that are counted in the audit trail, or lost.",
        broker.audit.unrecorded_total,
    )
    digest = broker.state.access.digest()
    others = [one.broker_set for one in broker.directory.accesses() if one.digest != digest]
    yield GaugeMetricFamily(
        "mq_access_sets_differing", "Other sets with other users or policies.", len(others)
    )


def _connections(connections: Connections) -> Iterator[Metric]:
    gauges = [
        ("mq_client_connections", "Connections of clients.", connections.count),
        ("mq_client_connections_max", "Beyond so many, more are refused.", connections.limit),
    ]
    for name, text, value in gauges:
        yield GaugeMetricFamily(name, text, value)

    kinds = GaugeMetricFamily(
        "mq_client_connections_by_version",
        "Connections of clients by language and version of their library.",
        labels=["language", "version"],
    )
    for kind, count in sorted(connections.kinds.items()):
        kinds.add_metric(kind, count)
    yield kinds


def _scrubbing(scrubbing: Scrubbing) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "mq_storage_scrubbed_bytes",
        "Log that was read and checked in the background.",
        scrubbing.scrubbed_bytes_total,
    )
    yield GaugeMetricFamily(
        "mq_storage_scrub_age_seconds",
        "Since all of the log was checked in the background; since the start, if it was not yet.",
        scrubbing.age_s,
    )


def _certificates(certificates: Sequence[Certificates[Any]]) -> Metric:
    ends = GaugeMetricFamily(
        "mq_tls_not_after_seconds",
        "When the certificate in use ends to be valid, in Unix time.",
        labels=["listener"],
    )
    for one in certificates:
        ends.add_metric([one.listener], one.generation.leaf.not_after_s)
    return ends


def _unapplied(broker: Broker) -> int:
    log = broker.store.log
    applied_index = broker.store.applied_index
    if not log.first_index <= applied_index <= log.last_index:
        return log.end_offset - log.start_offset
    return log.end_offset - log.place_of(applied_index)[1]


def _by_follower(raft: Status) -> Metric:
    behind = GaugeMetricFamily(
        "mq_raft_follower_lag_entries", "Entries a follower does not have.", labels=["node"]
    )
    for one in raft.followers:
        behind.add_metric([one.node_id], max(0, raft.last_index - one.match_index))
    return behind


def _sets(broker: Broker) -> Iterator[Metric]:
    """All of the cluster that this node has heard of; its own is never old."""
    sets = broker.directory.sets(broker.steady_ms())
    yield GaugeMetricFamily("mq_broker_sets", "Broker sets that are known of.", len(sets))
    ages = GaugeMetricFamily(
        "mq_broker_set_age_seconds", "Since a set was heard of.", labels=["broker_set"]
    )
    for one in sets:
        ages.add_metric([one.name], one.age_ms / 1000)
    yield ages


def _topics(broker: Broker) -> Iterator[Metric]:
    """Topics counted as `mq topic list` counts them, those of the broker's own apart."""
    topics = broker.state.topics
    internal, queues = topics.internal_count, topics.queue_count
    yield GaugeMetricFamily("mq_topics", "Topics.", len(topics) - internal)
    yield GaugeMetricFamily("mq_internal_topics", "Topics of the broker's own.", internal)
    yield GaugeMetricFamily("mq_topic_queues", "Queues of topics.", queues)
    stored = len(broker.store.queues)
    yield GaugeMetricFamily("mq_queues", "Queues that have messages or had some.", stored)


def _by_topic(broker: Broker) -> Iterator[Metric]:
    """Of the topics with most traffic: there may be very many."""
    for way, text, counts in (
        ("in", "taken from producers", broker.publisher.by_topic.read()),
        ("out", "given to consumers", broker.puller.by_topic.read()),
    ):
        labels = ["topic"]
        bound = f"of a topic {text}; of the {_TOPICS_MAX} topics with most bytes."
        messages = CounterMetricFamily(
            f"mq_topic_messages_{way}", f"Messages {bound}", labels=labels
        )
        size = CounterMetricFamily(f"mq_topic_bytes_{way}", f"Bytes {bound}", labels=labels)
        most = heapq.nlargest(_TOPICS_MAX, counts.items(), key=lambda one: one[1][1])
        for topic, (count, size_bytes) in most:
            messages.add_metric([topic], count)
            size.add_metric([topic], size_bytes)
        yield from (messages, size)


def _disk(broker: Broker) -> Iterator[Metric]:
    disk = broker.store.disk_usage()
    yield GaugeMetricFamily("mq_disk_size_bytes", "Size of the disk.", disk.total_bytes)
    yield GaugeMetricFamily("mq_disk_free_bytes", "Free on the disk.", disk.free_bytes)


def _stored(broker: Broker) -> Metric:
    """Of the largest topics: there may be very many."""
    family = GaugeMetricFamily(
        "mq_topic_stored_bytes",
        f"Bytes of a topic in the log of this node; of the {_TOPICS_MAX} topics with most.",
        labels=["topic"],
    )
    stored = ((broker.machine.stored_bytes(one.name), one.name) for one in broker.state.topics)
    for size, name in heapq.nlargest(_TOPICS_MAX, stored):
        family.add_metric([name], size)
    return family


def _damage(damage: DamageLog, messages_lost: int) -> Iterator[Metric]:
    labels = ["kind"]
    found = CounterMetricFamily(
        "mq_storage_damage_found",
        "Places on the disk that are not what was written.",
        labels=labels,
    )
    mended = CounterMetricFamily("mq_storage_damage_mended", "Of those, mended.", labels=labels)
    open_now = GaugeMetricFamily("mq_storage_damage_open", "Of those, not mended.", labels=labels)
    for kind in DamageKind:
        found.add_metric([kind.value], damage.found_total[kind])
        mended.add_metric([kind.value], damage.mended_total[kind])
        open_now.add_metric([kind.value], damage.open_count(kind))
    yield from (found, mended, open_now)
    lost = "Messages that readers were led past: damaged, and no node has them."
    yield CounterMetricFamily("mq_messages_lost_to_damage", lost, messages_lost)


def _transactions(broker: Broker) -> Iterator[Metric]:
    """Ends are those of the set since its beginning, under any leader; checks are this node's."""
    state = broker.state.transactions
    half = "Messages of transactions that are open."
    yield GaugeMetricFamily("mq_half_messages", half, state.messages)
    yield GaugeMetricFamily("mq_transactions_open", "Transactions that are open.", len(state.open))
    counters: list[tuple[str, str, float]] = [
        ("mq_transactions_committed", "Transactions that were committed.", state.committed),
        ("mq_transactions_rolled_back", "Transactions that were rolled back.", state.rolled_back),
        ("mq_transactions_given_up", "Transactions that were not ended in time.", state.given_up),
        (
            "mq_transaction_checks",
            "Questions about transactions.",
            broker.transacting.checks_total,
        ),
    ]
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value)


def _failed(broker: Broker) -> Iterator[Metric]:
    """By group, since its beginning, under any leader."""
    dead = CounterMetricFamily(
        "mq_dlq_messages", "Messages that became dead letters.", labels=["group"]
    )
    retried = CounterMetricFamily(
        "mq_retry_messages", "Failed messages that came back.", labels=["group"]
    )
    for group, totals in sorted(broker.dead_letters.totals().items()):
        dead.add_metric([group], totals.dead_letters)
        retried.add_metric([group], totals.retried)
    yield from (dead, retried)


def _lag(broker: Broker) -> Iterator[Metric]:
    """Exact, by group and topic; a group of ten thousand queues is a few lines."""
    labels = ["group", "topic"]
    messages = GaugeMetricFamily(
        "mq_consumer_lag_messages", "Messages that a group has before it.", labels=labels
    )
    seconds = GaugeMetricFamily(
        "mq_consumer_lag_seconds", "Age of the oldest of them.", labels=labels
    )
    inflight = GaugeMetricFamily(
        "mq_consumer_inflight_messages", "Delivered, not reported as done.", labels=["group"]
    )
    stalled = GaugeMetricFamily(
        "mq_consumer_stalled_seconds",
        "Longest time without progress of a member that has messages.",
        labels=["group"],
    )
    now_ms, looks = broker.now_ms(), 0
    received = broker.state.leases.in_hand()
    for group in broker.state.offsets.groups():
        totals: dict[str, tuple[int, Any]] = {}
        for queue, position in broker.state.offsets.positions(group).items():
            found = broker.store.queues.get(*queue)
            if found is None:
                continue
            ahead = broker.state.leases.done_ahead(group, queue)
            count = max(0, found.backlog(position) - ahead)
            before, oldest_ms = totals.get(queue.topic, (0, now_ms))
            if count and looks < _AGES_MAX:
                looks += 1
                stored_at_ms = broker.stored_at_ms(found, max(position, found.start))
                oldest_ms = min(oldest_ms, stored_at_ms or now_ms)
            totals[queue.topic] = before + count, oldest_ms
        for topic, (count, oldest_ms) in totals.items():
            messages.add_metric([group, topic], count)
            seconds.add_metric([group, topic], max(0, now_ms - oldest_ms) / 1000)
        inflight.add_metric([group], broker.groups.in_flight(group) + received.get(group, 0))
        stalled_ms = max(broker.groups.stalled_ms(group).values(), default=0)
        stalled.add_metric([group], stalled_ms / 1000)
    lost = CounterMetricFamily(
        "mq_messages_lost_to_retention", "Dropped before they were consumed.", labels=["group"]
    )
    for group, count in broker.lost_by_group.items():
        lost.add_metric([group], count)
    yield from (messages, seconds, inflight, stalled, lost)
