"""OpenTelemetry: spans of what clients do, and the context of a trace in the messages.

`instrument()` puts the clients' methods inside spans; without that call, or without the extra
`mq[otel]`, nothing is different, and nothing costs anything. Names are those of the semantic
conventions for messaging, version 1.44.0: `create`, `send`, `receive`, `process`, `settle`.

The context of the message's span travels in its properties `traceparent`, `tracestate` and
`baggage`, as the W3C defines them. What a user has set there is never overwritten. Spans of
consumers are linked to the spans that made their messages; a message that was retried, delayed or
copied still has its properties, and so its link.

This is the only module that imports OpenTelemetry, and only its API.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

from mq.client.batches import MessageBatch
from mq.client.consumer.consumer import Consumer, ThreadedConsumer
from mq.client.consumer.pull import PullConsumer
from mq.client.consumer.push import PushConsumer
from mq.client.consumer.retries import Nack
from mq.client.messages import Message, ReceivedMessage
from mq.client.producer.producer import Producer, SyncSend
from mq.client.simple.consumer import SimpleConsumer
from mq.client.transaction.producer import TransactionProducer

try:
    from opentelemetry import baggage, context, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    _IS_INSTALLED = False
else:
    _IS_INSTALLED = True
    _TRACE, _BAGGAGE = TraceContextTextMapPropagator(), W3CBaggagePropagator()

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
# A span keeps no more by default, and none needs them.
_LINKS_MAX: Final = 128
_TRACEPARENT: Final = "traceparent"

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Tracing:
    """The arguments of `instrument`, and the methods that it replaced."""

    def __init__(self) -> None:
        self.provider: Any = None
        self.replaced: list[tuple[type, str, Any]] = []

    @property
    def tracer(self) -> trace.Tracer | None:
        """None: no provider is configured, so that there is nothing to do."""
        provider = self.provider or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        return trace.get_tracer("mq.client", None, provider, SCHEMA_URL)


_tracing = _Tracing()


def instrument(tracer_provider: Any = None) -> bool:
    """From now on all clients of this process make spans, for this provider or for the global one;
    push consumers, if they are made later. Returns False if `mq[otel]` is not installed: then
    nothing is done.
    """
    if not _IS_INSTALLED:
        return False
    _tracing.provider = tracer_provider
    if not _tracing.replaced:
        for owner, name, wrap in _methods():
            original = getattr(owner, name)
            _tracing.replaced.append((owner, name, owner.__dict__.get(name)))
            setattr(owner, name, functools.wraps(original)(wrap(original)))
    return True


def uninstrument() -> None:
    for owner, name, original in _tracing.replaced:
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _tracing.replaced.clear()


class Instrumentor:
    """For `opentelemetry-instrument`, which finds it by its entry point."""

    def instrument(self, **options: Any) -> None:
        instrument(options.get("tracer_provider"))

    def uninstrument(self, **_: Any) -> None:
        uninstrument()


def processing(
    messages: ReceivedMessage | Sequence[ReceivedMessage], group: str = ""
) -> AbstractContextManager[Any]:
    """A `process` span around the work on messages that were polled, received or pulled; push
    consumers have it already.

        for message in consumer.poll():
            with processing(message, "mailers"):
                handle(message)
    """
    tracer = _tracing.tracer if _IS_INSTALLED else None
    return nullcontext() if tracer is None else _processing(tracer, messages, group)


def _methods() -> Iterator[tuple[type, str, Wrap]]:
    yield Producer, "send", _send_awaited
    yield Producer, "send_async", _send_later
    yield Producer, "send_one_way", _send_awaited
    yield Producer, "send_batch", _send_batch
    yield Producer, "send_many", _send_many
    yield SyncSend, "send", _send
    yield SyncSend, "send_async", _send_future
    yield SyncSend, "send_one_way", _send
    yield TransactionProducer, "send_in_transaction", _send_awaited
    yield Consumer, "poll", _receive_awaited
    yield Consumer, "poll_batch", _receive_awaited
    yield ThreadedConsumer, "poll_here", _receive
    yield ThreadedConsumer, "poll_batch_here", _receive
    yield PullConsumer, "pull", _receive_awaited
    yield SimpleConsumer, "receive", _receive_awaited
    yield SimpleConsumer, "receive_batch", _receive_awaited
    yield Consumer, "commit", _settle_awaited
    yield Consumer, "nack", _settle
    for name in ("ack", "nack", "change_invisible"):
        yield SimpleConsumer, name, _settle_awaited
    yield PushConsumer, "__init__", _push


# -- spans -----------------------------------------------------------------------------------------


def _attributes(
    operation: str, kind: str, topics: Iterable[str], group: str = "", count: int | None = None
) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "mq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    names = {*topics}
    if len(names) == 1:
        attributes["messaging.destination.name"] = names.pop()
    if group:
        attributes["messaging.consumer.group.name"] = group
    if count is not None:
        attributes["messaging.batch.message_count"] = count
    return attributes


def _start(
    tracer: trace.Tracer,
    attributes: Mapping[str, Any],
    kind: SpanKind,
    **more: Any,
) -> Span:
    operation = attributes["messaging.operation.name"]
    topic = attributes.get("messaging.destination.name", "")
    return tracer.start_span(
        f"{operation} {topic}".rstrip(), kind=kind, attributes=attributes, **more
    )


@contextmanager
def _inside(span: Span) -> Iterator[None]:
    """The span is the current one; it is not ended, unless by an error."""
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _links(messages: Iterable[ReceivedMessage]) -> list[Link]:
    """To the spans that made the messages, as far as they say them."""
    links = []
    for message in messages:
        if _TRACEPARENT in message.properties:
            made = trace.get_current_span(_TRACE.extract(message.properties)).get_span_context()
            if made.is_valid:
                links.append(Link(made, {"messaging.message.id": message.message_id}))
        if len(links) == _LINKS_MAX:
            break
    return links


def _place(span: Span, one: Any) -> None:
    """Where a message stands, as a result of a send or a received message says it."""
    if one.message_id:
        span.set_attribute("messaging.message.id", one.message_id)
    if one.queue_id >= 0:
        span.set_attribute("messaging.destination.partition.id", str(one.queue_id))


# -- sending ---------------------------------------------------------------------------------------


def _with_context(message: Message | bytes | str, span: Span) -> Message:
    """A copy that carries the context of the span, and the baggage of the sender."""
    if not isinstance(message, Message):
        message = Message(message.encode() if isinstance(message, str) else message)
    own: dict[str, str] = {}
    if _TRACEPARENT not in message.properties:
        _TRACE.inject(own, trace.set_span_in_context(span))
    if baggage.get_all():
        _BAGGAGE.inject(own)
    return replace(message, properties={**own, **message.properties}) if own else message


def _sending(
    tracer: trace.Tracer, topic: str, message: Message | bytes | str
) -> tuple[Span, Message]:
    body = message.body if isinstance(message, Message) else message
    attributes = _attributes("send", "send", [topic])
    attributes["messaging.message.body.size"] = len(body)
    span = _start(tracer, attributes, SpanKind.PRODUCER)
    return span, _with_context(message, span)


def _sent(span: Span, result: Any) -> None:
    if result is not None:
        _place(span, result)
        state = getattr(result, "state", "")
        if state:
            span.set_attribute("mq.transaction.state", state)
    span.end()


def _send(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, topic: str, message: Any, *args: Any, **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return original(self, topic, message, *args, **options)
        span, message = _sending(tracer, topic, message)
        with _inside(span):
            result = original(self, topic, message, *args, **options)
        _sent(span, result)
        return result

    return send


def _send_awaited(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, topic: str, message: Any, *args: Any, **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return await original(self, topic, message, *args, **options)
        span, message = _sending(tracer, topic, message)
        with _inside(span):
            result = await original(self, topic, message, *args, **options)
        _sent(span, result)
        return result

    return send


def _send_future(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, topic: str, message: Any, *args: Any, **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return original(self, topic, message, *args, **options)
        span, message = _sending(tracer, topic, message)
        with _inside(span):
            future = original(self, topic, message, *args, **options)
        future.add_done_callback(functools.partial(_answered, span))
        return future

    return send


def _send_later(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, topic: str, message: Any, *args: Any, **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return await original(self, topic, message, *args, **options)
        span, message = _sending(tracer, topic, message)
        with _inside(span):
            future = await original(self, topic, message, *args, **options)
        future.add_done_callback(functools.partial(_answered, span))
        return future

    return send


def _answered(span: Span, future: Any) -> None:
    if future.cancelled():
        span.end()
    elif error := future.exception():
        _fail(span, error)
        span.end()
    else:
        _sent(span, future.result())


def _send_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """A `create` span for each message, and one `send` span that is linked to them."""

    async def send(self: Any, topic: str, messages: Sequence[Any], **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return await original(self, topic, messages, **options)
        made, links = [], []
        for one in messages:
            create = _start(tracer, _attributes("create", "create", [topic]), SpanKind.PRODUCER)
            made.append(_with_context(one, create))
            create.end()
            links.append(Link(create.get_span_context()))
        attributes = _attributes("send", "send", [topic], count=len(made))
        span = _start(tracer, attributes, SpanKind.CLIENT, links=links[:_LINKS_MAX])
        with _inside(span):
            results = await original(self, topic, made, **options)
        span.end()
        return results

    return send


def _send_many(original: Callable[..., Any]) -> Callable[..., Any]:
    """One span for all of them, which may be very many: their context is that of the send."""

    async def send(self: Any, topic: str, messages: Sequence[Any], **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return await original(self, topic, messages, **options)
        attributes = _attributes("send", "send", [topic], count=len(messages))
        span = _start(tracer, attributes, SpanKind.PRODUCER)
        with _inside(span):
            made = [_with_context(one, span) for one in messages]
            results = await original(self, topic, made, **options)
        span.end()
        return results

    return send


# -- consuming -------------------------------------------------------------------------------------


def _group(client: Any) -> str:
    session = getattr(client, "_session", None)
    options = getattr(client, "_options", None) or getattr(session, "options", None)
    return getattr(options, "group", "") or ""


def _received(
    client: Any, operation: str, began_ns: int, found: Any, error: BaseException | None = None
) -> None:
    """A span for a call that has brought messages, or has failed; not for one of very many that
    wait in vain.
    """
    tracer = _tracing.tracer
    messages = found if isinstance(found, Sequence) else getattr(found, "messages", ())
    if tracer is None or not (messages or error):
        return
    topics = {one.topic for one in messages}
    attributes = _attributes(operation, "receive", topics, _group(client), len(messages))
    links = _links(messages)
    span = _start(tracer, attributes, SpanKind.CLIENT, links=links, start_time=began_ns)
    if error is not None:
        _fail(span, error)
    span.end()


def _receive(original: Callable[..., Any]) -> Callable[..., Any]:
    operation = original.__name__.removesuffix("_here").removesuffix("_batch")

    def receive(self: Any, *args: Any, **options: Any) -> Any:
        began_ns = time.time_ns()
        try:
            found = original(self, *args, **options)
        except Exception as error:
            _received(self, operation, began_ns, (), error)
            raise
        _received(self, operation, began_ns, found)
        return found

    return receive


def _receive_awaited(original: Callable[..., Any]) -> Callable[..., Any]:
    operation = original.__name__.removesuffix("_batch")

    async def receive(self: Any, *args: Any, **options: Any) -> Any:
        began_ns = time.time_ns()
        try:
            found = await original(self, *args, **options)
        except Exception as error:
            _received(self, operation, began_ns, (), error)
            raise
        _received(self, operation, began_ns, found)
        return found

    return receive


def _settling(tracer: trace.Tracer, client: Any, operation: str, given: Any) -> Span:
    if isinstance(given, ReceivedMessage):
        given = [given]
    messages = given if isinstance(given, Sequence) else ()
    topics = {one.topic for one in messages}
    count = len(messages) if messages else None
    attributes = _attributes(operation, "settle", topics, _group(client), count)
    return _start(tracer, attributes, SpanKind.CLIENT, links=_links(messages))


def _settle(original: Callable[..., Any]) -> Callable[..., Any]:
    def settle(self: Any, messages: Any, *args: Any, **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return original(self, messages, *args, **options)
        span = _settling(tracer, self, original.__name__, messages)
        with _inside(span):
            result = original(self, messages, *args, **options)
        span.end()
        return result

    return settle


def _settle_awaited(original: Callable[..., Any]) -> Callable[..., Any]:
    async def settle(self: Any, messages: Any = None, *args: Any, **options: Any) -> Any:
        tracer = _tracing.tracer
        if tracer is None:
            return await original(self, messages, *args, **options)
        span = _settling(tracer, self, original.__name__, messages)
        with _inside(span):
            result = await original(self, messages, *args, **options)
        span.end()
        return result

    return settle


# -- working on messages ---------------------------------------------------------------------------


def _begin_processing(tracer: trace.Tracer, argument: Any, group: str) -> tuple[Span, Any]:
    """The span, and the context that the work has."""
    is_one = isinstance(argument, ReceivedMessage)
    messages: Sequence[ReceivedMessage] = [argument] if is_one else argument
    topics = {one.topic for one in messages}
    count = None if is_one else len(messages)
    attributes = _attributes("process", "process", topics, group, count)
    parent = context.get_current()
    if is_one:
        # A message of its own goes on with the trace that it came from, unless there is one here.
        if not trace.get_current_span().get_span_context().is_valid:
            parent = _TRACE.extract(argument.properties, parent)
        parent = _BAGGAGE.extract(argument.properties, parent)
    span = _start(tracer, attributes, SpanKind.CONSUMER, links=_links(messages), context=parent)
    if is_one:
        _place(span, argument)
        span.set_attribute("messaging.message.body.size", len(argument.body))
        span.set_attribute("mq.message.attempt", argument.attempt)
    return span, trace.set_span_in_context(span, parent)


@contextmanager
def _processing(tracer: trace.Tracer, argument: Any, group: str) -> Iterator[Span]:
    span, inside = _begin_processing(tracer, argument, group)
    token = context.attach(inside)
    try:
        yield span
    except BaseException as error:
        _fail(span, error)
        raise
    finally:
        context.detach(token)
        span.end()


def _push(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self._handler = _traced(self._handler, _group(self))

    return init


def _traced(handler: Callable[[Any], object], group: str) -> Callable[[Any], object]:
    """The handler of a push consumer, which may be a coroutine function or not."""

    def handle(argument: ReceivedMessage | MessageBatch) -> object:
        tracer = _tracing.tracer
        if tracer is None:
            return handler(argument)
        if inspect.iscoroutinefunction(handler):
            return awaited(tracer, argument)
        with _processing(tracer, argument, group) as span:
            outcome = handler(argument)
            if not inspect.isawaitable(outcome):
                _judge(span, outcome)
        return outcome

    async def awaited(tracer: trace.Tracer, argument: ReceivedMessage | MessageBatch) -> object:
        with _processing(tracer, argument, group) as span:
            work = handler(argument)
            assert isinstance(work, Awaitable)  # noqa: S101 # of a coroutine function
            outcome: object = await work
            _judge(span, outcome)
        return outcome

    return handle


def _judge(span: Span, outcome: object) -> None:
    if isinstance(outcome, Nack):
        _fail(span, outcome)
