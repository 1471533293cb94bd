"""`mq bench`: measures a running broker from here, by the client library.

Here are the options and what is printed; the work is in `bench_load`. The topic is created when it
is missing and is left there, so that `bench consume` finds what `bench produce` has sent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from mq.cli import output
from mq.cli.bench_delay import measure_delay
from mq.cli.bench_load import Load, Measured, Show, consume, measure_latency, produce
from mq.cli.bench_receive import measure_receive
from mq.cli.bench_transaction import measure_transactions
from mq.cli.completion import complete_topic
from mq.cli.options import Brokers, Command, with_brokers
from mq.cli.tables import counted, size
from mq.errors import IllegalRequest, MqError, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mq.client import Admin

_MESSAGES = 100_000
_LATENCY_MESSAGES = 2_000
_TRANSACTIONS = 5_000


@click.group(short_help="Measure throughput and latency.")
def bench() -> None:
    """Measure a running broker.

    \b
    With --json:
      messages_per_s, mb_per_s   of bodies; a MB is a million bytes
      p50_ms, p99_ms             latency, see each command
      client_cpu_s               of this program and its processes
      broker_cpu_s               of all nodes together
    """


def _with_load(messages: int) -> Callable[[Command], Command]:
    """Options that every bench has."""

    def add(command: Command) -> Command:
        options = (
            click.option(
                "--topic",
                metavar="TOPIC",
                shell_complete=complete_topic,
                default="bench",
                show_default=True,
                help="Created when it is missing; stays.",
            ),
            click.option(
                "--queues",
                metavar="N",
                type=click.IntRange(1, 65_536),
                help="Queues of the topic when it is created.  [default: the broker's]",
            ),
            click.option(
                "--messages",
                metavar="N",
                type=click.IntRange(1),
                help=f"End after so many.  [default: {messages:,}, without --seconds]",
            ),
            click.option(
                "--seconds",
                metavar="SECONDS",
                type=click.FloatRange(0, min_open=True),
                help="End after so long.",
            ),
            click.option(
                "--size",
                "size_bytes",
                metavar="BYTES",
                type=click.IntRange(1, 4 << 20),
                default=1024,
                show_default=True,
                help="Size of a body.",
            ),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return add


_WITH_ACK = click.option(
    "--ack",
    type=click.Choice(["quorum", "leader", "none"]),
    default="quorum",
    show_default=True,
    help="When a message counts as sent.",
)


@bench.command("produce")
@_with_load(_MESSAGES)
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(1),
    help="Send batches of so many.  [default: the producer makes them]",
)
@click.option(
    "--producers",
    metavar="N",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that send at the same time.",
)
@_WITH_ACK
@with_brokers()
def bench_produce(
    brokers: Brokers,
    *,
    queues: int | None,
    batch: int | None,
    producers: int,
    **asked: Any,
) -> None:
    """Send as fast as possible.

    Latency is from sending to the answer, and has the time in the producer's
    buffer in it: it is that of a producer at its limit.
    """
    load = _load(brokers, _MESSAGES, batch=batch or 0, **asked)
    with _running(brokers, load, queues, "producing") as run:
        measured = produce(load, producers, run.show)
    more = {"batch": load.batch, "ack": load.ack, "producers": producers}
    _print_result(brokers, "produce", load, measured, run.cpu, more)


@bench.command("consume")
@_with_load(_MESSAGES)
@with_brokers()
def bench_consume(brokers: Brokers, *, queues: int | None, **asked: Any) -> None:
    """Consume as fast as possible, from the start of the topic.

    Messages that are missing there are sent before. Latency is how long a poll
    takes that returns up to 1,000 messages.
    """
    load = _load(brokers, _MESSAGES, **asked)
    with brokers.admin() as admin:
        _ensure_topic(admin, load.topic, queues)
        found = sum(each.end - each.start for each in admin.describe_topic(load.topic).queues)
        # The first message is received before the clock starts.
        missing = (load.messages or _MESSAGES) + 1 - found
        if missing > 0:
            with output.meter("sending what is missing", "message", 1000) as show:
                fill = load.plain(missing, None)
                produce(fill, 1, show)
    with _running(brokers, load, queues, "consuming", has_group=True) as run:
        measured = consume(load, run.group, run.show)
    _print_result(brokers, "consume", load, measured, run.cpu, {})


@bench.command("latency")
@_with_load(_LATENCY_MESSAGES)
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(0),
    default=200,
    show_default=True,
    help="Messages a second; 0: one after the other.",
)
@_WITH_ACK
@with_brokers()
def bench_latency(brokers: Brokers, *, queues: int | None, rate: float, **asked: Any) -> None:
    """Send at a low rate, receive, and measure how long that takes.

    Latency is from end to end: from the moment at which a message is to be
    sent until a consumer has it. send_p50_ms and send_p99_ms are until the
    send is answered.
    """
    load = _load(brokers, _LATENCY_MESSAGES, **asked)
    with _running(brokers, load, queues, has_group=True) as run:
        received, answered = measure_latency(load, run.group, rate, run.show)
    more = {
        "ack": load.ack,
        "rate_per_s": rate,
        "send_p50_ms": round(answered.percentile_ms(0.5), 3),
        "send_p99_ms": round(answered.percentile_ms(0.99), 3),
    }
    _print_result(brokers, "latency", load, received, run.cpu, more)


@bench.command("delay")
@_with_load(_MESSAGES)
@with_brokers()
def bench_delay(brokers: Brokers, *, queues: int | None, **asked: Any) -> None:
    """Deliver messages that are due at one moment.

    Throughput is from that moment until the last one is on the topic; latency
    is how late single messages are when a consumer has them; vs_produce is the
    throughput against that of plain sending in the same run.
    """
    load = _load(brokers, _MESSAGES, **asked)
    if load.messages is None:
        raise click.UsageError("how many are due at one moment has to be known: give --messages")
    with _running(brokers, load, queues, has_group=True, is_stoppable=False) as run:
        delivered, plain = measure_delay(load, run.group, run.admin, run.show)
    _print_result(brokers, "delay", load, delivered, run.cpu, _compared(delivered, plain))


@bench.command("transaction")
@_with_load(_TRANSACTIONS)
@click.option(
    "--parallel",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=128,
    show_default=True,
    help="Transactions at the same time.",
)
@with_brokers()
def bench_transaction(brokers: Brokers, *, queues: int | None, parallel: int, **asked: Any) -> None:
    """Run whole transactions: half message and commit.

    Latency is that of one, from sending until the commit is answered;
    vs_produce is the throughput against that of plain sending in the same run.
    """
    load = _load(brokers, _TRANSACTIONS, **asked)
    with _running(brokers, load, queues, unit="transaction") as run:
        whole, plain = measure_transactions(load, parallel, run.show)
    more = {"parallel": parallel, **_compared(whole, plain)}
    _print_result(brokers, "transaction", load, whole, run.cpu, more)


@bench.command("receive")
@_with_load(_MESSAGES)
@click.option(
    "--consumers",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    help="Members that share all queues.",
)
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=256,
    show_default=True,
    help="Messages of one receive, at the most.",
)
@with_brokers()
def bench_receive(brokers: Brokers, *, queues: int | None, consumers: int, **asked: Any) -> None:
    """Receive and acknowledge what was just sent.

    Latency is that of a round: a receive, and the acknowledgement of all that
    it gave; vs_produce is the throughput against that of plain sending in the
    same run.
    """
    load = _load(brokers, _MESSAGES, **asked)
    with _running(brokers, load, queues, has_group=True) as run:
        received, plain = measure_receive(load, run.group, consumers, run.show)
    more = {"batch": load.batch, "consumers": consumers, **_compared(received, plain)}
    _print_result(brokers, "receive", load, received, run.cpu, more)


# -- around the work -------------------------------------------------------------------------------


def _load(
    brokers: Brokers, default: int, messages: int | None, seconds: float | None, **asked: Any
) -> Load:
    if messages is None and seconds is None:
        messages = default
    return Load(
        brokers.servers, messages=messages, seconds=seconds, security=brokers.security, **asked
    )


class _Run(NamedTuple):
    admin: Admin
    # Of this run alone; empty: it needs none.
    group: str
    cpu: _CpuTimes
    show: Show


@contextlib.contextmanager
def _running(
    brokers: Brokers,
    load: Load,
    queues: int | None,
    verb: str = "measuring",
    unit: str = "message",
    *,
    has_group: bool = False,
    is_stoppable: bool = True,
) -> Iterator[_Run]:
    """The clocks run and the meter shows progress while the context lasts. `is_stoppable`: the
    first Ctrl-C ends the measurement, which counts until then; the second ends the command.
    """
    group = f"bench-{uuid.uuid4().hex[:12]}" if has_group else ""
    with brokers.admin() as admin:
        _ensure_topic(admin, load.topic, queues)
        try:
            stopping = _stopped_by_interrupt(load) if is_stoppable else contextlib.nullcontext()
            with stopping, _CpuTimes(admin) as cpu, output.meter(verb, unit, 1000) as show:
                yield _Run(admin, group, cpu, show)
        finally:
            if group:
                with contextlib.suppress(MqError):
                    admin.delete_group(group)


@contextlib.contextmanager
def _stopped_by_interrupt(load: Load) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        # A background job, which Ctrl-C does not reach.
        yield
        return

    def stop(_signal: int, _frame: object) -> None:
        load.stop()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _compared(measured: Measured, plain: Measured) -> dict[str, float]:
    """With plain sending in the same run."""
    return {
        "produce_messages_per_s": round(plain.per_s),
        "vs_produce": round(measured.per_s / max(plain.per_s, 1e-9), 3),
    }


def _ensure_topic(admin: Admin, topic: str, queues: int | None) -> None:
    try:
        info = admin.describe_topic(topic).info
    except TopicNotFound:
        info = admin.create_topic(topic, queues=queues or 0)
    if queues is not None and queues != info.write_queues:
        raise IllegalRequest(
            f"topic {topic} has {counted(info.write_queues, 'queue')}, not {queues}: "
            "leave --queues out, or name another --topic"
        )


class _CpuTimes:
    """CPU seconds of this process and its children, and of all nodes, while the context lasts."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.client_s = 0.0
        self.broker_s = 0.0

    def __enter__(self) -> Self:
        self._client_s, self._broker_s = _own_cpu_s(), self._brokers_cpu_s()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.client_s = _own_cpu_s() - self._client_s
            self.broker_s = self._brokers_cpu_s() - self._broker_s

    def _brokers_cpu_s(self) -> float:
        addresses = [
            node.address
            for broker_set in self._admin.route().broker_sets
            for node in broker_set.nodes
            if node.address
        ]
        total = 0.0
        for address in addresses:
            with contextlib.suppress(MqError):
                total += self._admin.broker_status(address).cpu_seconds
        return total


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# -- what is printed -------------------------------------------------------------------------------


def _print_result(
    brokers: Brokers,
    name: str,
    load: Load,
    measured: Measured,
    cpu: _CpuTimes,
    more: dict[str, Any],
) -> None:
    size_bytes = measured.body_bytes // max(measured.messages, 1)
    document = {
        "bench": name,
        "topic": load.topic,
        "size_bytes": size_bytes,
        "messages": measured.messages,
        "seconds": round(measured.seconds, 3),
        "messages_per_s": round(measured.per_s),
        "mb_per_s": round(measured.per_s * size_bytes / 1e6, 3),
        "p50_ms": round(measured.percentile_ms(0.5), 3),
        "p99_ms": round(measured.percentile_ms(0.99), 3),
        "client_cpu_s": round(cpu.client_s, 3),
        "broker_cpu_s": round(cpu.broker_s, 3),
        **more,
    }
    if load.stopped:
        document["is_interrupted"] = True
    if brokers.as_json:
        output.write_json(document)
    else:
        _print_fields(load, measured, cpu, document)
    if load.stopped:
        output.note("Stopped by Ctrl-C: measured until then.")
        raise KeyboardInterrupt


def _print_fields(load: Load, measured: Measured, cpu: _CpuTimes, document: dict[str, Any]) -> None:
    fields = [
        ("topic", load.topic),
        (
            "messages",
            f"{measured.messages:,}, {size(measured.body_bytes)}, in {measured.seconds:.2f} s",
        ),
        (
            "throughput",
            f"{document['messages_per_s']:,} messages/s, {document['mb_per_s']:,.1f} MB/s",
        ),
        ("latency", f"p50 {document['p50_ms']:,.2f} ms, p99 {document['p99_ms']:,.2f} ms"),
    ]
    if "send_p50_ms" in document:
        text = f"p50 {document['send_p50_ms']:,.2f} ms, p99 {document['send_p99_ms']:,.2f} ms"
        fields.append(("of the send", text))
    fields.append(("CPU", f"client {cpu.client_s:.2f} s, broker {cpu.broker_s:.2f} s"))
    output.print_fields(output.console(), fields)
