"""Ships what is paid: reads orders, sends a parcel for each that is paid."""

from mq.client import Consumer, Producer


def ship_paid_orders(server: str, orders: str, parcels: str, count: int) -> None:
    """Returns when so many parcels are on their way."""
    with (
        Producer(server) as producer,
        Consumer(server, "shipping", {orders: "paid"}, start="earliest") as consumer,
    ):
        shipped = 0
        while shipped < count:
            for order in consumer.poll(timeout_s=1.0):
                producer.send(parcels, order.body)
                consumer.done(order)
                shipped += 1
