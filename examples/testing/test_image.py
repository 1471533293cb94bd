"""The same against the image that is deployed: `MQ_IMAGE=mq:local pytest`, with Docker."""

import os

import pytest
from shipping import ship_paid_orders
from test_shipping import parcels_in, send_orders

from mq.testing.container import MqContainer

IMAGE = os.environ.get("MQ_IMAGE", "")


@pytest.mark.skipif(not IMAGE, reason="MQ_IMAGE names no image")
def test_paid_orders_are_shipped_with_the_deployed_broker() -> None:
    with MqContainer(IMAGE, {"MQ_STORE_FLUSH": "async"}) as broker:
        send_orders(broker.address, "orders", "paid", "placed")
        ship_paid_orders(broker.address, "orders", "parcels", count=1)
        assert parcels_in(broker.address, "parcels", 1) == [b"order 0"]
