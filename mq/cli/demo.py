"""`make demo`: a broker of its own on a free port; sends, consumes, filters, measures, stops.

Prints what happens as it happens. Ends with 0 when everything came back as it was sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from mq.cli import bench_load
from mq.cli.bench_load import Load
from mq.cli.tables import counted, size
from mq.client import Admin, Consumer, Message, Producer, Sql
from mq.errors import MqError, NodeStopped

_START_S = 60.0
_STOP_S = 30.0
_MESSAGES = 50_000
_ORDERS = (
    Message(b"order 7 of customer 3", tag="placed", keys=["order-7"], properties={"amount": "250"}),
    Message(b"order 8 of customer 5", tag="placed", keys=["order-8"], properties={"amount": "20"}),
    Message(b"order 7 is paid", tag="paid", keys=["order-7"], properties={"amount": "250"}),
)


def main() -> None:
    # As Ctrl-C: the broker ends with the demo.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="mq-demo-") as directory:
            run(Path(directory))
    except MqError as error:
        click.echo(f"error: {error.code.value}: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def run(directory: Path) -> None:
    with _broker(directory) as address:
        _send_and_consume(address)
        _look_up(address)
        _measure(address)
    click.echo("The broker has stopped, and its data is removed.")


@contextlib.contextmanager
def _broker(directory: Path) -> Iterator[str]:
    """Its address. Raises NodeStopped when it does not come up or ends badly."""
    log_path = directory / "broker.log"
    command = [sys.executable, "-m", "mq", "server", "--data", str(directory / "data")]
    flags = ["--port", "0", "--metrics-enabled", "no", "--log-format", "json"]
    # Options of a broker that is meant for something else.
    environment = {name: value for name, value in os.environ.items() if name[:3] != "MQ_"}
    began_s = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*command, *flags], stdout=log, stderr=log, env=environment
        )
    try:
        address = _wait_until_up(process, log_path)
        click.echo(f"A broker is up at {address} after {time.monotonic() - began_s:.1f} s.")
        yield address
        process.terminate()
        if process.wait(_STOP_S):
            raise NodeStopped(f"the broker ended with {process.returncode}: {log_path.read_text()}")
    finally:
        process.kill()
        process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        for line in log_path.read_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                event = json.loads(line)
                if event["event"] == "node is up":
                    return str(event["address"])
        time.sleep(0.02)
    raise NodeStopped(f"the broker did not come up: {log_path.read_text()}")


def _send_and_consume(address: str) -> None:
    click.echo("\nSend three messages, each answered when it is on disk:")
    with Producer(address) as producer:
        for message in _ORDERS:
            result = producer.send("orders", message)
            place = f"queue {result.queue_id}, offset {result.queue_offset}"
            click.echo(
                f"  {message.body.decode():<24} {message.tag:<8} {result.message_id}, {place}"
            )
    _consume(address, "billing", Sql("amount > 100"), "where amount > 100", 2)
    _consume(address, "shipping", "paid", "with the tag 'paid'", 1)
    _consume(address, "audit", None, "of all kinds", len(_ORDERS))


def _consume(address: str, group: str, wanted: str | Sql | None, words: str, count: int) -> None:
    click.echo(f"\nGroup {group} consumes messages {words}:")
    received: list[bytes] = []
    with Consumer(address, group, {"orders": wanted}, start="earliest") as consumer:
        deadline_s = time.monotonic() + _START_S
        while len(received) < count and time.monotonic() < deadline_s:
            for message in consumer.poll():
                click.echo(f"  {message.body.decode()}")
                received.append(message.body)
    if len(received) != count:
        raise NodeStopped(f"{counted(len(received), 'message')} came, expected were {count}")


def _look_up(address: str) -> None:
    with Admin(address) as admin:
        click.echo("\nLook a message up by its key, order-7:")
        for stored in admin.query_messages("orders", "order-7"):
            click.echo(f"  {stored.message_id}: {stored.message.body.decode()}")
        click.echo("\nWhat the broker knows of the groups:")
        for group in admin.list_groups():
            click.echo(f"  {group.group:<10} {counted(group.lag, 'message')} behind")


def _measure(address: str) -> None:
    click.echo(f"\n{_MESSAGES:,} messages of 1 KiB, by one producer and one consumer:")
    load = Load(address, "speed", 1024, _MESSAGES, None)
    sent = bench_load.produce(load, 1, _quiet)
    click.echo(f"  sent      {_speed(sent)}")
    received = bench_load.consume(load, "speed", _quiet)
    click.echo(f"  consumed  {_speed(received)}")
    click.echo("\n200 messages at 100 a second, from a producer to a consumer:")
    with Admin(address) as admin:
        admin.create_topic("latency")
    slow = Load(address, "latency", 1024, 200, None)
    trips, answers = bench_load.measure_latency(slow, "latency", 100, _quiet)
    for name, measured in (("on disk and answered", answers), ("with the consumer", trips)):
        middle, slowest = measured.percentile_ms(0.5), measured.percentile_ms(0.99)
        click.echo(f"  {name:<21} p50 {middle:.1f} ms, p99 {slowest:.1f} ms")
    click.echo()


def _quiet(_count: int, _done: int) -> None:
    pass


def _speed(measured: bench_load.Measured) -> str:
    rate = measured.messages / measured.seconds
    return f"{rate:,.0f} messages/s, {size(int(measured.body_bytes / measured.seconds))}/s"


if __name__ == "__main__":
    main()
