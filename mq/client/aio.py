"""The client library for programs with asyncio: the same names as `mq.client`, with coroutines.

A client belongs to the event loop on which it is used first. A name is imported when it is first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mq.client.admin.admin import Admin
    from mq.client.consumer.consumer import Consumer
    from mq.client.consumer.pull import PullConsumer, PullResult, PullStatus
    from mq.client.consumer.push import PushConsumer
    from mq.client.consumer.retries import Nack
    from mq.client.messages import Message, Origin, QueueRef, ReceivedMessage, SendResult, Sql, Tags
    from mq.client.processing.processor import Processor
    from mq.client.producer.producer_aio import Producer
    from mq.client.requesting.request import Replier, Requester
    from mq.client.simple.consumer import SimpleConsumer
    from mq.client.transaction.transaction_model import HalfMessage, Resolution, TransactionResult
    from mq.client.transaction.transactions_aio import TransactionProducer
    from mq.errors import MqError

_HOMES = {
    "Admin": "mq.client.admin.admin",
    "Consumer": "mq.client.consumer.consumer",
    "HalfMessage": "mq.client.transaction.transaction_model",
    "Message": "mq.client.messages",
    "MqError": "mq.errors",
    "Nack": "mq.client.consumer.retries",
    "Origin": "mq.client.messages",
    "Processor": "mq.client.processing.processor",
    "Producer": "mq.client.producer.producer_aio",
    "PullConsumer": "mq.client.consumer.pull",
    "PullResult": "mq.client.consumer.pull",
    "PullStatus": "mq.client.consumer.pull",
    "PushConsumer": "mq.client.consumer.push",
    "QueueRef": "mq.client.messages",
    "ReceivedMessage": "mq.client.messages",
    "Replier": "mq.client.requesting.request",
    "Requester": "mq.client.requesting.request",
    "Resolution": "mq.client.transaction.transaction_model",
    "SendResult": "mq.client.messages",
    "SimpleConsumer": "mq.client.simple.consumer",
    "Sql": "mq.client.messages",
    "Tags": "mq.client.messages",
    "TransactionProducer": "mq.client.transaction.transactions_aio",
    "TransactionResult": "mq.client.transaction.transaction_model",
}

__all__ = [
    "Admin",
    "Consumer",
    "HalfMessage",
    "Message",
    "MqError",
    "Nack",
    "Origin",
    "Processor",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueRef",
    "ReceivedMessage",
    "Replier",
    "Requester",
    "Resolution",
    "SendResult",
    "SimpleConsumer",
    "Sql",
    "Tags",
    "TransactionProducer",
    "TransactionResult",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
