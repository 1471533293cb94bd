"""The public face: the names of `mq.client` and `mq.client.aio` in one table, constructors that
take the fields of an options object, and old names of parameters.

A module is imported when one of its names is first used, so that a producer does not wait for what
only consumers need.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S")
OptionsT = TypeVar("OptionsT")
P = ParamSpec("P")

# Clients, for asyncio and without: the second one is generated from the first, see
# tools/generate_sync.py.
CLIENTS: dict[str, tuple[str, str]] = {
    "Admin": ("mq.client.admin", "mq.client._sync.admin"),
    "Consumer": ("mq.client.consumer.consumer", "mq.client._sync.consumer"),
    "Processor": ("mq.client.processor", "mq.client._sync.processor"),
    "Producer": ("mq.client.producer.producer", "mq.client._sync.producer"),
    "PullConsumer": ("mq.client.consumer.pull", "mq.client._sync.consumer"),
    "PushConsumer": ("mq.client.consumer.push", "mq.client._sync.consumer"),
    "Replier": ("mq.client.request_reply", "mq.client._sync.request_reply"),
    "Requester": ("mq.client.request_reply", "mq.client._sync.request_reply"),
    "SimpleConsumer": ("mq.client.simple.consumer", "mq.client._sync.simple"),
    "TransactionProducer": ("mq.client.transaction.producer", "mq.client._sync.transaction"),
}

# Values, the same for both.
VALUES: dict[str, str] = {
    "HalfMessage": "mq.client.transaction.checks",
    "Message": "mq.client.messages",
    "MessageBatch": "mq.client.batches",
    "MqError": "mq.errors",
    "Nack": "mq.client.consumer.retries",
    "Origin": "mq.client.messages",
    "PullResult": "mq.client.consumer.pull",
    "PullStatus": "mq.client.consumer.pull",
    "QueueRef": "mq.client.messages",
    "ReceivedMessage": "mq.client.messages",
    "Resolution": "mq.client.transaction.checks",
    "SendResult": "mq.client.messages",
    "SendResults": "mq.client.producer.bulk",
    "Sql": "mq.client.messages",
    "Tags": "mq.client.messages",
    "TransactionResult": "mq.client.transaction.checks",
}

# Values that have something to wait for, for asyncio and without; both written by hand.
AWAITED_VALUES: dict[str, tuple[str, str]] = {
    "ReceivedBatch": ("mq.client.simple.batch", "mq.client.simple.sync")
}

AIO = VALUES | {name: aio for name, (aio, _) in (CLIENTS | AWAITED_VALUES).items()}
SYNC = VALUES | {name: sync for name, (_, sync) in (CLIENTS | AWAITED_VALUES).items()}


def lazily(package: str, homes: dict[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package whose names stand in other modules."""

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return find


def arguments_of(
    options: Callable[P, OptionsT],
) -> Callable[[Callable[[S, OptionsT], None]], Callable[Concatenate[S, P], None]]:
    """The constructor takes the arguments of an options class, with their types and defaults, and
    its body is given the options. `help`, editors and type checkers see them one by one.
    """

    def decorate(body: Callable[[S, OptionsT], None]) -> Callable[Concatenate[S, P], None]:
        def construct(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            body(self, options(*args, **kwargs))

        functools.update_wrapper(construct, body)
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        taken = inspect.signature(options)
        seen = taken.replace(parameters=[itself, *taken.parameters.values()])
        vars(construct)["__signature__"] = seen
        return construct

    return decorate


def renamed(**names: str) -> Callable[[F], F]:
    """The method takes a parameter by its old name (the key), too."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                new = names[old]
                if new in given:
                    raise TypeError(f"{function.__name__}: {old} is the old name of {new}")
                text = f"{function.__name__}: {old} is called {new} now"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                given[new] = given.pop(old)
            return function(*args, **given)

        return cast("F", call)

    return decorate
