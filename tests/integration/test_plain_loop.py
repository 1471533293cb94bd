"""A whole broker on asyncio's own loop: uvloop is an extra, which a machine may not have."""

from __future__ import annotations

from pathlib import Path

from mq.client import Consumer, Message, Producer, TransactionProducer
from tests.support.broker_process import BrokerProcess

HIDDEN = "import sys; sys.modules['uvloop'] = None; from mq.__main__ import main; main()"


class PlainBroker(BrokerProcess):
    @property
    def program(self) -> list[str]:
        return ["-c", HIDDEN]


def has_uvloop(broker: BrokerProcess) -> bool:
    """Whether its library is loaded."""
    return "/uvloop/loop." in Path(f"/proc/{broker.pid}/maps").read_text()


def test_a_broker_without_uvloop_serves_clients_survives_a_kill_and_stops(tmp_path: Path) -> None:
    bodies = [b"small", bytes(3 << 20), b"in a transaction"]
    with BrokerProcess(tmp_path / "other") as other:
        assert has_uvloop(other)
    with PlainBroker(tmp_path / "data") as broker:
        assert not has_uvloop(broker)
        with Producer(broker.address) as producer:
            for body in bodies[:2]:
                producer.send("t", Message(body, ordering_key="one queue"))
        with TransactionProducer(
            broker.address, "g", lambda *_: "COMMIT", lambda _: "COMMIT"
        ) as producing:
            producing.send_in_transaction("t", Message(bodies[2], ordering_key="one queue"))
        broker.kill()
        broker.start()
        assert not has_uvloop(broker)
        with Consumer(broker.address, "g", "t", start="earliest") as consumer:
            found: list[bytes] = []
            while len(found) < len(bodies):
                found += [message.body for message in consumer.poll(timeout_s=30)]
        assert found == bodies
        assert broker.stop() == 0
        assert "Traceback" not in broker.output()
