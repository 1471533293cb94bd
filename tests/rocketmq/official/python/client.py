"""The official Python client, told what to do by lines of JSON: see ../client.py."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

TLS = os.environ.get("ROCKETMQ_TLS") == "1"
CONFIGURATION = ClientConfiguration(
    sys.argv[1],
    Credentials(
        os.environ.get("ROCKETMQ_ACCESS_KEY", ""), os.environ.get("ROCKETMQ_SECRET_KEY", "")
    ),
    os.environ.get("ROCKETMQ_NAMESPACE", ""),
    # It asks for a route once: its default of 3 s includes connecting, on a busy machine, too.
    request_timeout=30,
)
STARTS = 3
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}

numbers = itertools.count(1)
write_lock, producer_lock = threading.Lock(), threading.Lock()
producers: dict[str, Any] = {}
consumers: dict[int, Any] = {}
# By consumer and message id.
received: dict[tuple[int, str], Any] = {}


def write(line: dict[str, Any]) -> None:
    with write_lock:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def shown(message: Any) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag or "",
        "keys": sorted(message.keys or ()),
        "properties": dict(message.properties or {}),
        "message_group": message.message_group or "",
        "deliver_at_ms": int(message.delivery_timestamp or 0),
        "born_at_ms": int(message.born_timestamp or 0),
        "attempt": message.delivery_attempt,
        "at_ms": int(time.time() * 1000),
    }


class Checker(TransactionChecker):  # type: ignore[misc] # without types, as the next
    def check(self, message: Any) -> Any:
        write({"event": "check", "message": shown(message)})
        return RESOLUTIONS[message.properties["check"]]


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self, consumer: int) -> None:
        self._consumer = consumer
        self._lock = threading.Lock()
        self._calls: collections.Counter[str] = collections.Counter()

    def consume(self, message: Any) -> ConsumeResult:
        with self._lock:
            self._calls[message.message_id] += 1
            call = self._calls[message.message_id]
        write(
            {
                "event": "message",
                "consumer": self._consumer,
                "call": call,
                "message": shown(message),
            }
        )
        fails = call <= int(message.properties.get("failures", 0))
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def producer_of(topic: str) -> Any:
    with producer_lock:
        if topic not in producers:
            producer = Producer(CONFIGURATION, (topic,), checker=Checker(), tls_enable=TLS)
            producer.startup()
            producers[topic] = producer
        return producers[topic]


def built(request: dict[str, Any]) -> Message:
    message = Message()
    message.topic = request["topic"]
    message.body = request["body"].encode()
    for name in ("tag", "message_group", "priority"):
        if name in request:
            setattr(message, name, request[name])
    for key in request.get("keys", ()):
        message.keys = key
    for name, value in request.get("properties", {}).items():
        message.add_property(name, value)
    if "deliver_at_ms" in request:
        message.delivery_timestamp = -(-request["deliver_at_ms"] // 1000)
    return message


def send(request: dict[str, Any]) -> dict[str, Any]:
    receipt = producer_of(request["topic"]).send(built(request))
    return {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle or ""}


def half(request: dict[str, Any]) -> dict[str, Any]:
    producer = producer_of(request["topic"])
    transaction = producer.begin_transaction()
    receipt = producer.send(built(request), transaction)
    if request["end"] == "commit":
        transaction.commit()
    elif request["end"] == "rollback":
        transaction.rollback()
    return {"message_id": receipt.message_id}


def recall(request: dict[str, Any]) -> dict[str, Any]:
    producer = producer_of(request["topic"])
    return {"message_id": producer.recall_message(request["topic"], request["recall_handle"])}


def subscription(request: dict[str, Any]) -> dict[str, FilterExpression]:
    if "sql" in request:
        return {request["topic"]: FilterExpression(request["sql"], FilterType.SQL)}
    return {request["topic"]: FilterExpression(request.get("tags", "*"))}


def simple(request: dict[str, Any]) -> dict[str, Any]:
    consumer = SimpleConsumer(
        CONFIGURATION,
        request["group"],
        subscription(request),
        await_duration=request["await_s"],
        tls_enable=TLS,
    )
    return opened(next(numbers), consumer)


def push(request: dict[str, Any]) -> dict[str, Any]:
    number = next(numbers)
    listener = Listener(number)
    for left in reversed(range(STARTS)):
        consumer = PushConsumer(
            CONFIGURATION, request["group"], listener, subscription(request), tls_enable=TLS
        )
        try:
            return opened(number, consumer)
        except AttributeError:
            # What it says when its start failed, on a busy machine: another one starts.
            if not left:
                raise
    raise AssertionError("a start succeeds or fails")


def opened(number: int, consumer: Any) -> dict[str, Any]:
    consumer.startup()
    consumers[number] = consumer
    return {"consumer": number}


def receive(request: dict[str, Any]) -> dict[str, Any]:
    number = request["consumer"]
    messages = consumers[number].receive(request["count"], request["invisible_s"]) or []
    for message in messages:
        received[number, message.message_id] = message
    return {"messages": [shown(message) for message in messages]}


def ack(request: dict[str, Any]) -> dict[str, Any]:
    number = request["consumer"]
    consumers[number].ack(received[number, request["message_id"]])
    return {}


def change(request: dict[str, Any]) -> dict[str, Any]:
    number = request["consumer"]
    message = received[number, request["message_id"]]
    consumers[number].change_invisible_duration(message, request["invisible_s"])
    return {}


def close(request: dict[str, Any]) -> dict[str, Any]:
    consumers.pop(request["consumer"]).shutdown()
    return {}


DEEDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "send": send,
    "half": half,
    "recall": recall,
    "simple": simple,
    "push": push,
    "receive": receive,
    "ack": ack,
    "change": change,
    "close": close,
}


def serve(request: dict[str, Any]) -> None:
    # The main thread of a program has a loop. The client opens its stream of telemetry by whichever
    # thread is first, and fails if that one has none.
    asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        answer = DEEDS[request["do"]](request)
    except Exception as error:  # noqa: BLE001 # the test judges it
        answer = {"error": f"{type(error).__name__}: {error}"}
    write({"id": request["id"], **answer})


for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
os._exit(0)  # its threads are not waited for
