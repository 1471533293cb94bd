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
    from mq.client.model import Message, QueueRef, ReceivedMessage, SendResult, Sql, Tags
    from mq.client.producer_aio import Producer
    from mq.client.pull import PullConsumer, PullResult, PullStatus
    from mq.client.push import PushConsumer
    from mq.errors import MqError

_HOMES = {
    "Admin": "mq.client.admin",
    "Consumer": "mq.client.consumer",
    "Message": "mq.client.model",
    "MqError": "mq.errors",
    "Producer": "mq.client.producer_aio",
    "PullConsumer": "mq.client.pull",
    "PullResult": "mq.client.pull",
    "PullStatus": "mq.client.pull",
    "PushConsumer": "mq.client.push",
    "QueueRef": "mq.client.model",
    "ReceivedMessage": "mq.client.model",
    "SendResult": "mq.client.model",
    "Sql": "mq.client.model",
    "Tags": "mq.client.model",
}

__all__ = [
    "Admin",
    "Consumer",
    "Message",
    "MqError",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueRef",
    "ReceivedMessage",
    "SendResult",
    "Sql",
    "Tags",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
