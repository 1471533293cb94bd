"""python exactly_once.py TOPIC     payments, of each of which exactly one booking is made

What a processor makes of messages, and that it is done with them, is one step at the broker: both
or nothing. Here it fails now and then when half of its work is done, and is even stopped and
started again in the middle; no payment is booked twice, and none is left out.
"""

import itertools
import os
import sys
from collections import Counter

from mq.client import Consumer, Message, MqError, Processor, Producer, ReceivedMessage

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
PAYMENTS = 200


def pay(topic: str) -> None:
    with Producer(SERVER) as producer:
        for number in range(PAYMENTS):
            customer = f"customer-{number % 7}"
            producer.send_async(topic, Message(b"%d" % number, ordering_key=customer))


def main(topic: str) -> None:
    bookings = f"{topic}-bookings"
    calls = itertools.count(1)

    def book(payments: list[ReceivedMessage]) -> list[tuple[str, Message]]:
        made = []
        for at, payment in enumerate(payments):
            if at == len(payments) // 2 and next(calls) % 3 == 0:
                # The same payments come again; their results so far are not visible.
                raise ConnectionError("the ledger does not answer")
            made.append((bookings, Message(payment.body, ordering_key=payment.ordering_key)))
        return made

    def processor() -> Processor:
        return Processor(
            SERVER,
            "example-bookkeepers",
            topic,
            book,
            start="earliest",
            batch_messages=8,
            retry_delay_s=0.05,
        )

    pay(topic)
    booked: Counter[bytes] = Counter()
    with Consumer(SERVER, "example-auditors", bookings, start="earliest") as auditor:
        with processor():
            while booked.total() < PAYMENTS // 3:
                booked.update(message.body for message in auditor.poll(8))
        with processor():
            while booked.total() < PAYMENTS:
                booked.update(message.body for message in auditor.poll())
        # Nothing else comes.
        booked.update(message.body for message in auditor.poll(timeout_s=0.5))
    twice = sum(count > 1 for count in booked.values())
    print(f"{PAYMENTS} payments, {len(booked)} of them booked, {twice} of them twice")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python exactly_once.py TOPIC")
    try:
        main(sys.argv[1])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
