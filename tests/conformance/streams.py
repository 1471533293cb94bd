"""The two bidirectional streams, for tests that say one thing after the other."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Self

import grpc

from mq.wire.v1 import consumer_pb2, producer_pb2
from tests.conformance.calls import DEADLINE_S, Refusal, path_of, publish_request, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mq.wire.v1.message_pb2 import Batch

_END = object()


class Stream:
    """One call. Responses are kept in order until they are read."""

    def __init__(
        self, channel: grpc.Channel, method: str, parse: Callable[[bytes], Any], **options: Any
    ) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._parse = parse
        self.call = channel.stream_stream(path_of(method))(self._outgoing(), **options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _outgoing(self) -> Iterator[bytes]:
        while (request := self._requests.get()) is not _END:
            yield request

    def _read(self) -> None:
        try:
            for data in self.call:
                self._answers.put(self._parse(data))
        except grpc.RpcError as error:
            self._answers.put(error)
        else:
            self._answers.put(_END)

    def send(self, request: Any) -> None:
        self.send_bytes(request.SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        self._requests.put(data)

    def half_close(self) -> None:
        self._requests.put(_END)

    def next(self, timeout_s: float = DEADLINE_S) -> Any:
        """The next answer. AssertionError when the stream ends or nothing comes in time."""
        answer = self.next_or_none(timeout_s)
        assert answer is not None, f"nothing came in {timeout_s} s"
        return answer

    def next_or_none(self, timeout_s: float) -> Any:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if answer is _END or isinstance(answer, grpc.RpcError):
            self._answers.put(answer)
            raise AssertionError(f"the stream has ended: {answer!r}")
        return answer

    def rest(self, timeout_s: float = DEADLINE_S) -> list[Any]:
        """All answers up to the good end of the stream."""
        answers = []
        while (answer := self._answers.get(timeout=timeout_s)) is not _END:
            assert not isinstance(answer, grpc.RpcError), f"the stream has failed: {answer!r}"
            answers.append(answer)
        return answers

    def refusal(self, timeout_s: float = DEADLINE_S) -> tuple[list[Any], Refusal]:
        """The answers before the error that ends the stream, and the error."""
        answers: list[Any] = []
        while not isinstance(answer := self._answers.get(timeout=timeout_s), grpc.RpcError):
            assert answer is not _END, f"the stream was not refused, after {answers}"
            answers.append(answer)
        return answers, refusal_of(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As a client that goes away."""
        self.call.cancel()
        self.half_close()
        self._reader.join(DEADLINE_S)


class PublishStream(Stream):
    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__(
            channel, "ProducerService/Publish", producer_pb2.PublishResponse.FromString
        )
        self._next_id = 0

    def publish(self, *batches: Batch, ack: producer_pb2.Ack = producer_pb2.ACK_QUORUM) -> int:
        """The id of the request."""
        self._next_id += 1
        self.send(publish_request(self._next_id, *batches, ack=ack))
        return self._next_id

    def result(self, batch: Batch, **fields: Any) -> producer_pb2.BatchResult:
        """The result of one batch that is sent alone."""
        request_id = self.publish(batch, **fields)
        answer = self.next()
        assert answer.request_id == request_id
        (result,) = answer.results
        assert isinstance(result, producer_pb2.BatchResult)
        return result


class SubscribeStream(Stream):
    """A member of a group, with what it has been assigned and what it was given."""

    def __init__(
        self,
        channel: grpc.Channel,
        group: str,
        topic: str,
        member_id: str = "member-1",
        **fields: Any,
    ) -> None:
        super().__init__(
            channel, "ConsumerService/Subscribe", consumer_pb2.SubscribeResponse.FromString
        )
        self.topic = topic
        wanted = fields.pop("filter", None)
        subscriptions = fields.pop(
            "subscriptions", [consumer_pb2.Subscription(topic=topic, filter=wanted)]
        )
        fields.setdefault("start_position", consumer_pb2.START_EARLIEST)
        start = consumer_pb2.SubscribeStart(
            group=group, member_id=member_id, subscriptions=subscriptions, **fields
        )
        self.send(consumer_pb2.SubscribeRequest(start=start))

    # -- from the broker --------------------------------------------------------------------------

    def assignment(self, timeout_s: float = DEADLINE_S) -> consumer_pb2.Assignment:
        """The next thing, which must be one."""
        answer = self.next(timeout_s)
        assert answer.WhichOneof("kind") == "assignment", answer
        found: consumer_pb2.Assignment = answer.assignment
        return found

    def assigned(self, timeout_s: float = DEADLINE_S) -> dict[int, consumer_pb2.AssignedQueue]:
        """The queues of the next assignment, by their ids."""
        return {one.queue_id: one for one in self.assignment(timeout_s).queues}

    def until_assigned(self, *queue_ids: int) -> list[consumer_pb2.Delivery]:
        """Waits for the assignment of exactly these; the deliveries that came before it."""
        before = []
        while True:
            answer = self.next()
            if answer.WhichOneof("kind") == "delivery":
                before.append(answer.delivery)
            elif {one.queue_id for one in answer.assignment.queues} == set(queue_ids):
                return before

    def delivery(self, timeout_s: float = DEADLINE_S) -> consumer_pb2.Delivery:
        """The next one; assignments before it are passed over."""
        while True:
            answer = self.next(timeout_s)
            if answer.WhichOneof("kind") == "delivery":
                found: consumer_pb2.Delivery = answer.delivery
                return found

    def messages(self, count: int) -> list[tuple[int, int, bytes]]:
        """The next so many or more: queue id, queue offset, body of each."""
        found: list[tuple[int, int, bytes]] = []
        while len(found) < count:
            found += placed(self.delivery())
        return found

    def silence(self, seconds: float) -> None:
        """Nothing comes for so long."""
        answer = self.next_or_none(seconds)
        assert answer is None, answer

    # -- to the broker ----------------------------------------------------------------------------

    def progress(self, queue_id: int, queue_offset: int, epoch: int = 0) -> None:
        position = self._position(queue_id, queue_offset, epoch)
        progress = consumer_pb2.Progress(positions=[position])
        self.send(consumer_pb2.SubscribeRequest(progress=progress))

    def seek(self, queue_id: int, queue_offset: int) -> None:
        position = self._position(queue_id, queue_offset)
        self.send(consumer_pb2.SubscribeRequest(seek=consumer_pb2.Seek(positions=[position])))

    def release(self, *queue_ids: int, epoch: int | None = None) -> None:
        queues = [
            consumer_pb2.QueueId(topic=self.topic, queue_id=at, epoch=epoch) for at in queue_ids
        ]
        released = consumer_pb2.Released(queues=queues)
        self.send(consumer_pb2.SubscribeRequest(released=released))

    def alive(self) -> None:
        self.send(consumer_pb2.SubscribeRequest(alive=consumer_pb2.Alive()))

    def leave(self) -> None:
        """In good order."""
        self.half_close()
        self._reader.join(DEADLINE_S)

    def _position(
        self, queue_id: int, queue_offset: int, epoch: int = 0
    ) -> consumer_pb2.QueuePosition:
        return consumer_pb2.QueuePosition(
            topic=self.topic, queue_id=queue_id, queue_offset=queue_offset, epoch=epoch
        )


def placed(delivery: consumer_pb2.Delivery) -> list[tuple[int, int, bytes]]:
    return [
        (delivery.queue_id, run.queue_offset + at, message.body)
        for run in delivery.runs
        for at, message in enumerate(run.messages)
    ]
