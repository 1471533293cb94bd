"""Both tests use the one broker of the run; `mq_name` keeps their topics apart."""

from shipping import ship_paid_orders

from mq.client import Consumer, Message, Producer
from mq.testing import Broker


def send_orders(server: str, topic: str, *tags: str) -> None:
    with Producer(server) as producer:
        for number, tag in enumerate(tags):
            producer.send(topic, Message(f"order {number}".encode(), tag=tag))


def parcels_in(server: str, topic: str, count: int) -> list[bytes]:
    with Consumer(server, f"{topic}-test", topic, start="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < count:
            found += [message.body for message in consumer.poll(timeout_s=5.0)]
        return sorted(found)


def test_only_paid_orders_are_shipped(mq_broker: Broker, mq_name: str) -> None:
    server = mq_broker.address
    send_orders(server, mq_name, "paid", "placed", "paid")
    ship_paid_orders(server, mq_name, f"{mq_name}.parcels", count=2)
    assert parcels_in(server, f"{mq_name}.parcels", 2) == [b"order 0", b"order 2"]


def test_an_order_survives_a_broker_that_dies() -> None:
    with Broker() as broker:
        send_orders(broker.address, "orders", "paid")
        broker.kill()
        broker.start()
        ship_paid_orders(broker.address, "orders", "parcels", count=1)
        assert parcels_in(broker.address, "parcels", 1) == [b"order 0"]
