"""python order_service.py [PAY_WITHIN_S]     orders in transactions, and cancelled when not paid

An order is written to the shop's own database, and others hear of it by a message: both or none. So
the message is sent in a transaction. It is stored at first as a half message, which no consumer
sees; then `execute` writes the order; then the message is committed, or rolled back. When no word
comes because the service died in between, the broker asks `check`, in any process of the service.

The consumer of an order sends itself a delayed message, and cancels what is not paid by then.
"""

import contextlib
import json
import os
import queue
import sqlite3
import sys
import tempfile
import uuid
from collections.abc import Iterator

from mq.client import (
    HalfMessage,
    Message,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
ORDERS, DUE = "service-orders", "service-payments-due"


class Shop:
    """The service, with a database of its own. Others may run at the same broker."""

    def __init__(self, path: str) -> None:
        self.name = uuid.uuid4().hex
        self._path = path
        self.said: queue.Queue[str] = queue.Queue()
        with self.database() as db:
            db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT, tx TEXT UNIQUE)")

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """One local transaction: committed at the end, rolled back by an exception."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as db, db:
            yield db

    # -- the two functions of a transaction -----------------------------------------------------

    def execute(self, message: HalfMessage, stock: int) -> str:
        """Runs when the half message is stored. Its id is written down with the order."""
        order = json.loads(message.body)["order"]
        if stock == 0:
            return "ROLLBACK"
        with self.database() as db:
            row = (order, "unpaid", message.transaction_id)
            db.execute("INSERT INTO orders VALUES (?, ?, ?)", row)
        # The order is in the database, and now the word of it gets lost.
        return "UNKNOWN" if order == "order-3" else "COMMIT"

    def check(self, message: HalfMessage) -> str:
        """The broker asks what became of it. The database knows."""
        with self.database() as db:
            row = (message.transaction_id,)
            found = db.execute("SELECT id FROM orders WHERE tx = ?", row).fetchone()
        if found is None:
            # It may still be at work in another process. Only the broker gives up, in the end.
            return "UNKNOWN"
        self.said.put(f"{found[0]}: the broker asks, the database has it: COMMIT")
        return "COMMIT"

    # -- the consumer of orders ------------------------------------------------------------------

    def on_order(self, producer: Producer, pay_within_s: float, message: ReceivedMessage) -> None:
        if json.loads(message.body)["shop"] == self.name:
            producer.send(DUE, Message(message.body, keys=message.keys, delay_s=pay_within_s))
            self.said.put(f"{message.keys[0]}: is to be paid within {pay_within_s:g} s")

    def on_due(self, message: ReceivedMessage) -> None:
        if json.loads(message.body)["shop"] != self.name:
            return
        with self.database() as db:
            # A message may come twice, and an order is cancelled once.
            row = (message.keys[0],)
            changed = db.execute(
                "UPDATE orders SET state = 'cancelled' WHERE id = ? AND state = 'unpaid'", row
            ).rowcount
        self.said.put(f"{message.keys[0]}: " + ("not paid, cancelled" if changed else "was paid"))

    def pay(self, order: str) -> None:
        with self.database() as db:
            db.execute("UPDATE orders SET state = 'paid' WHERE id = ?", (order,))
        print(f"{order}: paid", flush=True)


def main(pay_within_s: float) -> None:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        shop = Shop(os.path.join(directory, "shop.db"))
        producer = stack.enter_context(Producer(SERVER))
        # A process of the service is asked as long as this runs; here that is after a second.
        transactions = stack.enter_context(
            TransactionProducer(SERVER, "shop", shop.execute, shop.check, first_check_s=1)
        )
        for topic, handle in (
            (ORDERS, lambda message: shop.on_order(producer, pay_within_s, message)),
            (DUE, shop.on_due),
        ):
            stack.enter_context(PushConsumer(SERVER, f"{topic}-{shop.name}", topic, handle))
        for number, stock in ((1, 5), (2, 0), (3, 4)):
            order = f"order-{number}"
            body = json.dumps({"order": order, "shop": shop.name}).encode()
            message = Message(body, keys=[order])
            result = transactions.send_in_transaction(ORDERS, message, stock)
            print(f"{order}: {result.state}", flush=True)
        shop.pay("order-1")
        # Two orders are heard of, one of them after a question; then both are due.
        for _ in range(5):
            print(shop.said.get(timeout=60), flush=True)
        with shop.database() as db:
            print(db.execute("SELECT id, state FROM orders ORDER BY id").fetchall())


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
