"""The client library for programs with asyncio: the same names as `mq.client`, with coroutines.

A client belongs to the event loop on which it is used first. A name is imported when it is first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mq.client.admin import Admin
    from mq.client.consumer import Consumer
    from mq.client.failing import Nack
    from mq.client.model import Message, Origin, QueueRef, ReceivedMessage, SendResult, Sql, Tags
    from mq.client.processor import Processor
    from mq.client.producer_aio import Producer
    from mq.client.pull import PullConsumer, PullResult, PullStatus
    from mq.client.push import PushConsumer
    from mq.client.request import Replier, Requester
    from mq.client.simple import SimpleConsumer
    from mq.client.transaction_model import HalfMessage, Resolution, TransactionResult
    from mq.client.transactions_aio import TransactionProducer
    from mq.errors import MqError

_HOMES = {
    "Admin": "mq.client.admin",
    "Consumer": "mq.client.consumer",
    "HalfMessage": "mq.client.transaction_model",
    "Message": "mq.client.model",
    "MqError": "mq.errors",
    "Nack": "mq.client.failing",
    "Origin": "mq.client.model",
    "Processor": "mq.client.processor",
    "Producer": "mq.client.producer_aio",
    "PullConsumer": "mq.client.pull",
    "PullResult": "mq.client.pull",
    "PullStatus": "mq.client.pull",
    "PushConsumer": "mq.client.push",
    "QueueRef": "mq.client.model",
    "ReceivedMessage": "mq.client.model",
    "Replier": "mq.client.request",
    "Requester": "mq.client.request",
    "Resolution": "mq.client.transaction_model",
    "SendResult": "mq.client.model",
    "SimpleConsumer": "mq.client.simple",
    "Sql": "mq.client.model",
    "Tags": "mq.client.model",
    "TransactionProducer": "mq.client.transactions_aio",
    "TransactionResult": "mq.client.transaction_model",
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
