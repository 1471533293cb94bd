"""Requests and replies over topics.

A requester reads the reply topic in broadcast mode, from its start on, with a filter on the broker
that only its own replies pass. A reply that comes after the time-out of its request is dropped.
Repliers are members of a group: each request goes to one of them, and to another when that one
dies, so a request may be worked on more than once; the requester gets the first reply.

Requests and replies each go to any broker set that has their topic. A requester reads the reply
topic in all sets; in a set that comes back, or is new, from a point before its own start.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace

from mq.client.admin import Admin
from mq.client.cluster.connection import ConnectionOptions, SetConnection
from mq.client.cluster.retry import back_off_s
from mq.client.consumer.options import Start
from mq.client.consumer.push import PushConsumer
from mq.client.lifecycle import AsyncClient
from mq.client.messages import Message, ReceivedMessage
from mq.client.producer.producer import Producer
from mq.client.public import arguments_of
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    MqError,
    RequestFailed,
    RequestTimeout,
    TopicExists,
    Unreachable,
)
from mq.wire.v1.admin_pb2 import CreateTopicRequest

log = logging.getLogger(__name__)

# A topic like others, which the first requester creates.
REPLY_TOPIC = "REPLIES"
# Properties of a request: where its reply goes, its requester's tag there, and its number.
REPLY_TO, REPLY_TAG, CORRELATION_ID = "reply-to", "reply-tag", "correlation-id"
# A property of a reply: why the work failed.
ERROR = "reply-error"
_ERROR_CHARACTERS_MAX = 1_000

# The time for a broker set to store a request or a reply, before another one is tried.
_SEND_S = 3.0
_CREATE_S = 1.0
# The attempts to send a reply before its request is worked on once more.
_REPLY_ATTEMPTS = 3

Reply = Message | bytes | str | None
Handler = Callable[[ReceivedMessage], Awaitable[Reply] | Reply]


@dataclass(frozen=True, kw_only=True)
class RequesterOptions(ConnectionOptions):
    """Documented at `Requester`. Raises IllegalConfig."""

    reply_topic: str = REPLY_TOPIC
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout_s <= 0:
            raise IllegalConfig(f"timeout_s is {self.timeout_s}: it must be more than 0")


class Requester(AsyncClient):
    """Sends requests, and waits for the reply to each.

    >>> async def double(request):
    ...     return request.body * 2
    >>> async def main() -> None:
    ...     async with (
    ...         Replier(servers, "doublers", "to-double", double),
    ...         Requester(servers) as requester,
    ...     ):
    ...         print((await requester.request("to-double", b"ab")).body)
    >>> asyncio.run(main())
    b'abab'

    Replies go to `reply_topic`, which is created when it is missing. `timeout_s` is for requests
    that say nothing else.
    """

    @arguments_of(RequesterOptions)
    def __init__(self, options: RequesterOptions) -> None:
        self._tag = uuid.uuid4().hex
        self._options = options
        self._reply_topic = options.reply_topic
        self._timeout_s = options.timeout_s
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._producer = Producer(**options.shared)
        self._consumer = self._new_consumer()
        self._starting: asyncio.Task[None] | None = None
        self._is_closed = False

    def _new_consumer(self) -> PushConsumer:
        return PushConsumer(
            # A group of its own: it subscribes to something else than the others.
            group=f"requester-{self._tag}",
            subscriptions={self._reply_topic: self._tag},
            handler=self._replied,
            mode="broadcast",
            tasks=1,
            **self._options.shared,
        )

    async def start(self) -> None:
        """Returns when replies can be received. Raises Unreachable, IllegalTopic..."""
        if self._is_closed:
            raise ClientClosed("the requester is closed: make another one")
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        await self._create_reply_topic()
        try:
            await self._consumer.start()
        except MqError:
            self._consumer = self._new_consumer()  # for another start
            raise

    async def _create_reply_topic(self) -> None:
        """Creates it unless a set has it: one is enough, also when others are down."""
        connection = self._options.connect()
        try:
            if (await connection.brokers([self._reply_topic])).topics:
                return
            try:
                async with Admin(**self._options.shared) as admin:
                    await admin.create_topic(self._reply_topic)
            except TopicExists:
                pass
            except Unreachable:
                for broker_set in await connection.sets():
                    if await self._is_created_in(broker_set):
                        return
                raise
        finally:
            await connection.close()

    async def _is_created_in(self, broker_set: SetConnection) -> bool:
        request = CreateTopicRequest(topic=self._reply_topic)
        try:
            await broker_set.call(request, _CREATE_S)
        except TopicExists:
            return True
        except MqError as error:
            log.info("broker set %s does not create %s: %s", broker_set.name, request.topic, error)
            return False
        return True

    async def request(
        self, topic: str, message: Message | bytes | str, timeout_s: float | None = None
    ) -> ReceivedMessage:
        """Returns the reply. RequestTimeout when none came in time; RequestFailed, with the reason,
        when the handler failed; or the error by which the request could not be sent.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        correlation_id = str(next(self._numbers))
        wanted = request_message(message, self._reply_topic, self._tag, correlation_id)
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        failure: MqError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                await self.start()
                self._waiting[correlation_id] = future
                for attempt in itertools.count():
                    failure = await self._send(topic, wanted)
                    if failure is None:
                        break
                    # The reply may come all the same.
                    await asyncio.wait([future], timeout=back_off_s(attempt))
                    if future.done():
                        break
                reply = await future
        except TimeoutError:
            if failure is not None:
                raise failure from None
            raise RequestTimeout(
                f"no reply to a request to topic {topic} within {timeout_s:g} s: perhaps there is "
                "no replier, or the work takes longer"
            ) from None
        finally:
            self._waiting.pop(correlation_id, None)
        if (text := reply.properties.get(ERROR)) is not None:
            raise RequestFailed(text)
        return reply

    async def _send(self, topic: str, message: Message) -> MqError | None:
        """Returns an error that may pass: another broker set may store the request sooner."""
        try:
            await self._producer.send(topic, message, timeout_s=_SEND_S)
        except MqError as error:
            if not error.retryable:
                raise
            return error
        return None

    def _replied(self, reply: ReceivedMessage) -> None:
        future = self._waiting.get(reply.properties.get(CORRELATION_ID, ""))
        if future is not None and not future.done():
            future.set_result(reply)

    async def close(self) -> None:
        """Requests without a reply fail."""
        self._is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RequestTimeout("the requester was closed before a reply came"))
        await self._producer.close()
        await self._consumer.close()

    async def _enter(self) -> None:
        try:
            await self.start()
        except BaseException:
            await self._producer.close()
            raise


@dataclass(frozen=True)
class ReplierOptions(ConnectionOptions):
    """Documented at `Replier`."""

    group: str
    topic: str
    handler: Handler
    _: KW_ONLY
    start: Start = "latest"
    tasks: int = 20


class Replier(AsyncClient):
    """Calls `handler` for each request of the topic. Its result is the reply; its exceptions are
    reported to the requester. `tasks` handlers run at the same time. See `Requester`.
    """

    @arguments_of(ReplierOptions)
    def __init__(self, options: ReplierOptions) -> None:
        self._handler = options.handler
        self._producer = Producer(**options.shared)
        self._consumer = PushConsumer(
            group=options.group,
            subscriptions=options.topic,
            handler=self._serve,
            start=options.start,
            tasks=options.tasks,
            **options.shared,
        )

    async def start(self) -> None:
        """Returns when it has joined its group."""
        await self._consumer.start()

    async def _serve(self, request: ReceivedMessage) -> None:
        if not is_request(request):
            log.warning("message %s is no request: it is dropped", request.message_id)
            return
        try:
            made = self._handler(request)
            reply = reply_message(request, await made if inspect.isawaitable(made) else made)
        except Exception as error:  # any error of the handler goes to the requester
            log.warning("request %s failed", request.message_id, exc_info=error)
            reply = error_reply(request, error)
        for attempt in itertools.count(1):
            try:
                await self._producer.send(request.properties[REPLY_TO], reply)
            except MqError as error:
                if not error.retryable:
                    log.error(  # noqa: TRY400 # no traceback says more
                        "the reply to request %s cannot be sent: %s", request.message_id, error
                    )
                    return
                if attempt >= _REPLY_ATTEMPTS:
                    raise  # the request is delivered again
                # Another broker set may take it.
                log.info("the reply to request %s is sent again: %s", request.message_id, error)
            else:
                return

    async def join(self, timeout_s: float | None = None) -> bool:
        """Waits until the replier is closed, at most so long. Returns whether it is. Raises the
        error by which the broker has ended it.
        """
        return await self._consumer.join(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """No new requests; waits for the handlers at work, so long."""
        try:
            await self._consumer.close(timeout_s)
        finally:
            await self._producer.close()

    async def _enter(self) -> None:
        await self.start()


# Requests and replies as messages


def request_message(
    message: Message | bytes | str, reply_to: str, tag: str, correlation_id: str
) -> Message:
    own = {REPLY_TO: reply_to, REPLY_TAG: tag, CORRELATION_ID: correlation_id}
    given = _as_message(message)
    return replace(given, properties={**given.properties, **own})


def is_request(message: ReceivedMessage) -> bool:
    return all(message.properties.get(name) for name in (REPLY_TO, REPLY_TAG, CORRELATION_ID))


def reply_message(request: ReceivedMessage, reply: object) -> Message:
    """The reply for the value that a handler returned; None is an empty one. TypeError if it is no
    message.
    """
    given = _as_message(b"" if reply is None else reply)
    properties = {**given.properties, CORRELATION_ID: request.properties[CORRELATION_ID]}
    return replace(given, tag=request.properties[REPLY_TAG], properties=properties)


def error_reply(request: ReceivedMessage, error: BaseException) -> Message:
    text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
    text = text[:_ERROR_CHARACTERS_MAX]
    return reply_message(request, Message(b"", properties={ERROR: text}))


def _as_message(given: object) -> Message:
    if isinstance(given, Message):
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return Message(bytes(given))
    if isinstance(given, str):
        return Message(given.encode())
    raise TypeError(f"a message, bytes or text, not {type(given).__name__}")
