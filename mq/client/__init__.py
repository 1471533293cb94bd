"""The client library: producers, consumers and administration, for programs without asyncio.

`mq.client.aio` has the same names for programs with it; both are faces of one core. A name is
imported when it is first used, so that a producer does not wait for what only consumers need.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

# gRPC's own handlers of a fork crash the child now and then, and write to its stderr. Clients do
# not survive a fork anyway, see `sync`. To be set before gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    from mq.client.admin.admin_sync import Admin
    from mq.client.consumer.consumer_sync import Consumer, PullConsumer, PushConsumer
    from mq.client.consumer.pull import PullResult, PullStatus
    from mq.client.consumer.retries import Nack
    from mq.client.messages import Message, Origin, QueueRef, ReceivedMessage, SendResult, Sql, Tags
    from mq.client.processing.processor_sync import Processor
    from mq.client.producer.producer_sync import Producer
    from mq.client.requesting.request_sync import Replier, Requester
    from mq.client.simple.simple_sync import SimpleConsumer
    from mq.client.transaction.transaction_model import HalfMessage, Resolution, TransactionResult
    from mq.client.transaction.transactions_sync import TransactionProducer
    from mq.errors import MqError

_HOMES = {
    "Admin": "mq.client.admin.admin_sync",
    "Consumer": "mq.client.consumer.consumer_sync",
    "HalfMessage": "mq.client.transaction.transaction_model",
    "Message": "mq.client.messages",
    "MqError": "mq.errors",
    "Nack": "mq.client.consumer.retries",
    "Origin": "mq.client.messages",
    "Processor": "mq.client.processing.processor_sync",
    "Producer": "mq.client.producer.producer_sync",
    "PullConsumer": "mq.client.consumer.consumer_sync",
    "PullResult": "mq.client.consumer.pull",
    "PullStatus": "mq.client.consumer.pull",
    "PushConsumer": "mq.client.consumer.consumer_sync",
    "QueueRef": "mq.client.messages",
    "ReceivedMessage": "mq.client.messages",
    "Replier": "mq.client.requesting.request_sync",
    "Requester": "mq.client.requesting.request_sync",
    "Resolution": "mq.client.transaction.transaction_model",
    "SendResult": "mq.client.messages",
    "SimpleConsumer": "mq.client.simple.simple_sync",
    "Sql": "mq.client.messages",
    "Tags": "mq.client.messages",
    "TransactionProducer": "mq.client.transaction.transactions_sync",
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
