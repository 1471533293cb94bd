"""The signatures of public methods."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from mq.client import Consumer, aio
from mq.client.consumer.consumer import PollOptions
from mq.client.public import arguments_of
from mq.errors import ClientClosed

SERVER = "127.0.0.1:1"


def test_an_old_name_is_taken_with_a_warning() -> None:
    consumer = Consumer(SERVER, "g", "t")
    consumer.close()
    options: dict[str, Any] = {"messages_max": 1}
    with (
        pytest.warns(DeprecationWarning, match="messages_max is called max_messages now"),
        pytest.raises(ClientClosed),
    ):
        consumer.poll(**options)


def test_an_old_name_is_taken_with_asyncio() -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {"messages_max": 1, "bytes_max": 1}
        consumer = aio.PullConsumer(SERVER)
        await consumer.close()
        with (
            pytest.warns(DeprecationWarning, match="is called max_"),
            pytest.raises(ClientClosed),
        ):
            await consumer.pull("t", 0, 0, **options)

    asyncio.run(scenario())


def test_a_parameter_is_given_by_one_of_its_names() -> None:
    options: dict[str, Any] = {"messages_max": 1}
    with Consumer(SERVER, "g", "t") as consumer, pytest.raises(TypeError, match="old name"):
        consumer.poll(max_messages=1, **options)


class Twin:
    @arguments_of(PollOptions)
    def __init__(self, options: PollOptions) -> None:
        self.options = options


def test_a_constructor_takes_the_arguments_of_its_options() -> None:
    assert Twin(SERVER, "g", "t", start="earliest").options.start == "earliest"
    with pytest.raises(TypeError, match="unexpected keyword argument 'strat'"):
        Twin(SERVER, "g", "t", strat="earliest")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [Consumer, aio.Consumer])
def test_the_signature_of_a_constructor_shows_its_arguments_one_by_one(kind: type[Any]) -> None:
    shown = inspect.signature(kind).parameters
    assert list(shown)[:3] == ["servers", "group", "subscriptions"]
    assert (shown["mode"].default, shown["mode"].annotation) == ("clustering", "Mode")
