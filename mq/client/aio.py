"""The client library for programs with asyncio: the same names as `mq.client`, with coroutines.

A client belongs to the event loop on which it is used first. A name is imported when it is first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mq.client.administering.admin import Admin
    from mq.client.consuming.consumer import Consumer
    from mq.client.consuming.failing import Nack
    from mq.client.consuming.pull import PullConsumer, PullResult, PullStatus
    from mq.client.consuming.push import PushConsumer
    from mq.client.model import Message, Origin, QueueRef, ReceivedMessage, SendResult, Sql, Tags
    from mq.client.processing.processor import Processor
    from mq.client.producing.producer_aio import Producer
    from mq.client.receiving.simple import SimpleConsumer
    from mq.client.requesting.request import Replier, Requester
    from mq.client.transacting.transaction_model import HalfMessage, Resolution, TransactionResult
    from mq.client.transacting.transactions_aio import TransactionProducer
    from mq.errors import MqError

_HOMES = {
    "Admin": "mq.client.administering.admin",
    "Consumer": "mq.client.consuming.consumer",
    "HalfMessage": "mq.client.transacting.transaction_model",
    "Message": "mq.client.model",
    "MqError": "mq.errors",
    "Nack": "mq.client.consuming.failing",
    "Origin": "mq.client.model",
    "Processor": "mq.client.processing.processor",
    "Producer": "mq.client.producing.producer_aio",
    "PullConsumer": "mq.client.consuming.pull",
    "PullResult": "mq.client.consuming.pull",
    "PullStatus": "mq.client.consuming.pull",
    "PushConsumer": "mq.client.consuming.push",
    "QueueRef": "mq.client.model",
    "ReceivedMessage": "mq.client.model",
    "Replier": "mq.client.requesting.request",
    "Requester": "mq.client.requesting.request",
    "Resolution": "mq.client.transacting.transaction_model",
    "SendResult": "mq.client.model",
    "SimpleConsumer": "mq.client.receiving.simple",
    "Sql": "mq.client.model",
    "Tags": "mq.client.model",
    "TransactionProducer": "mq.client.transacting.transactions_aio",
    "TransactionResult": "mq.client.transacting.transaction_model",
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
