"""The services as any client in any language sees them: a channel, the messages of `proto/`, and
nothing else of ours.
"""

from __future__ import annotations

import hashlib
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf import message_factory

from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    security_pb2,
    status_pb2,
    transaction_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.descriptor import MethodDescriptor

DEADLINE_S = 30.0
# By default a client takes 4 MiB, which a message of the largest size in its frame is not.
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1)]
FILES = (admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, security_pb2, transaction_pb2)
METHODS: dict[str, MethodDescriptor] = {
    f"{service.name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
STREAMS = (
    "ProducerService/Publish",
    "ConsumerService/Subscribe",
    "TransactionService/Transact",
)
UNARY = tuple(sorted(METHODS.keys() - set(STREAMS)))


def path_of(method: str) -> str:
    return f"/mq.v1.{method}"


def request_type(method: str) -> Any:
    return message_factory.GetMessageClass(METHODS[method].input_type)


def response_type(method: str) -> Any:
    return message_factory.GetMessageClass(METHODS[method].output_type)


class Refusal(NamedTuple):
    """The failure of a call."""

    code: str
    text: str
    grpc_code: grpc.StatusCode
    status: status_pb2.Status


def refusal_of(error: Any) -> Refusal:
    """Checks that the status and both trailers say the same."""
    metadata = dict(error.trailing_metadata() or ())
    assert "mq-code" in metadata, f"{error.code()}: {error.details()}"
    status = status_pb2.Status.FromString(metadata["mq-status-bin"])
    assert metadata["mq-code"] == status_pb2.Code.Name(status.code)
    assert status.text
    return Refusal(metadata["mq-code"], status.text, error.code(), status)


class Calls:
    """Unary methods by name. The name is enough where it is unique, which it is."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self._paths = {method.partition("/")[2]: method for method in METHODS}

    def __call__(self, name: str, /, **fields: Any) -> Any:
        method = self._paths[name]
        data = self.raw(method, request_type(method)(**fields).SerializeToString())
        return response_type(method).FromString(data)

    def raw(self, method: str, data: bytes) -> bytes:
        answer: bytes = self.channel.unary_unary(path_of(method))(data, timeout=DEADLINE_S)
        return answer

    def refused(self, name: str, /, **fields: Any) -> Refusal:
        """The error that the call must end with."""
        try:
            answer = self(name, **fields)
        except grpc.RpcError as error:
            return refusal_of(error)
        raise AssertionError(f"{name} was not refused: {answer}")

    # -- often used -------------------------------------------------------------------------------

    def create(self, topic: str, queues: int = 4, **fields: Any) -> str:
        self("CreateTopic", topic=topic, queues=queues, **fields)
        return topic

    def send(self, topic: str, *bodies: bytes, queue_id: int = 0, **fields: Any) -> Any:
        messages = fields.pop("messages", [message_pb2.Message(body=body) for body in bodies])
        return self("Send", topic=topic, queue_id=queue_id, messages=messages, **fields)

    def ends(self, topic: str) -> list[int]:
        return [queue.end for queue in self("DescribeTopic", topic=topic).queues]

    def bodies(self, topic: str, queue_id: int = 0, queue_offset: int = 0) -> list[bytes]:
        """All of a queue."""
        found: list[bytes] = []
        while True:
            answer = self("Pull", topic=topic, queue_id=queue_id, queue_offset=queue_offset)
            if answer.status != consumer_pb2.PULL_FOUND:
                return found
            found += bodies_in(answer.runs)
            queue_offset = answer.next_offset

    def committed(self, group: str, topic: str) -> dict[int, int]:
        positions = self("QueryOffsets", group=group).positions
        return {one.queue_id: one.queue_offset for one in positions if one.topic == topic}

    def lag(self, group: str) -> int:
        return int(self("DescribeGroup", group=group).summary.lag)


def bodies_in(runs: Iterable[consumer_pb2.Run]) -> list[bytes]:
    return [message.body for run in runs for message in run.messages]


def text_hash(text: str) -> int:
    """As message.proto has it."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little") if text else 0


def plain(topic: str, *bodies: bytes, queue_id: int = 0, **fields: Any) -> message_pb2.Batch:
    """A batch that the broker prepares."""
    messages = fields.pop("messages", [message_pb2.Message(body=body) for body in bodies])
    return message_pb2.Batch(topic=topic, queue_id=queue_id, messages=messages, **fields)


def prepared(topic: str, *bodies: bytes, queue_id: int = 0, **fields: Any) -> message_pb2.Batch:
    """A batch as the comments of message.proto tell a client to make it."""
    batch = plain(topic, *bodies, queue_id=queue_id, **fields)
    batch.frame_sizes.extend(frame_size(message) for message in batch.messages)
    batch.tag_hashes.extend(text_hash(message.tag) for message in batch.messages)
    if any(message.keys for message in batch.messages):
        keys = [key for message in batch.messages for key in message.keys]
        batch.key_hashes.extend(map(text_hash, keys))
        batch.key_counts.extend(len(message.keys) for message in batch.messages)
    return batch


def frame_size(message: message_pb2.Message) -> int:
    """With its field tag and length prefix."""
    return len(message_pb2.Batch(messages=[message]).SerializeToString())


def publish_request(
    request_id: int, *batches: message_pb2.Batch, ack: producer_pb2.Ack = producer_pb2.ACK_QUORUM
) -> producer_pb2.PublishRequest:
    return producer_pb2.PublishRequest(request_id=request_id, ack=ack, batches=batches)


def code_of(result: producer_pb2.BatchResult) -> str:
    return status_pb2.Code.Name(result.code)


def until(
    question: Callable[[], Any], what: str = "it is so", timeout_s: float = DEADLINE_S
) -> Any:
    """Asks until the answer is true; the answer."""
    deadline = time.monotonic() + timeout_s
    while not (answer := question()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return answer


def numbers(count: int, start: int = 0) -> list[bytes]:
    """Bodies that tell their place."""
    return [struct.pack(">Q", number) for number in range(start, start + count)]
