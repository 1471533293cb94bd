"""The constructor arguments of a producer, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from mq import names
from mq.client.cluster.connection import ConnectionOptions
from mq.client.messages import AckName
from mq.errors import IllegalConfig, Unreachable
from mq.wire.v1.producer_pb2 import ACK_LEADER, ACK_NONE, ACK_QUORUM

# `send` waits a little longer than the time-out of its message, for the error with the reason.
GRACE_S = 0.3
ACKS: dict[str, int] = {"quorum": ACK_QUORUM, "leader": ACK_LEADER, "none": ACK_NONE}


@dataclass(frozen=True)
class ProducerOptions(ConnectionOptions):
    """Documented at `Producer`. Raises IllegalConfig for illegal options."""

    servers: str | Sequence[str] = "127.0.0.1:8081"
    _: KW_ONLY
    ack: AckName = "quorum"
    timeout_s: float = 3.0
    retries: int = 2
    linger_ms: float = 2
    batch_bytes: int = 256 << 10
    compress_above_bytes: int = 4096
    idempotent: bool = True
    producer_id: str | None = None
    buffer_bytes: int = 64 << 20
    in_flight_max: int = 32

    def __post_init__(self) -> None:
        if self.ack not in ACKS:
            raise IllegalConfig(f"ack {self.ack!r}: use one of {', '.join(ACKS)}")
        for name in ("timeout_s", "batch_bytes", "buffer_bytes", "in_flight_max"):
            if getattr(self, name) <= 0:
                raise IllegalConfig(f"{name} is {getattr(self, name)}: it must be more than 0")
        for name in ("retries", "linger_ms", "compress_above_bytes"):
            if getattr(self, name) < 0:
                raise IllegalConfig(f"{name} is {getattr(self, name)}: it must not be negative")
        if self.producer_id is not None and not (
            0 < len(self.producer_id) <= names.NAME_CHARACTERS_MAX
            and self.producer_id.isprintable()
        ):
            raise IllegalConfig(
                f"producer_id {self.producer_id[:200]!r}: use 1 to {names.NAME_CHARACTERS_MAX} "
                "printable characters"
            )


def too_late(topic: str, timeout_s: float) -> Unreachable:
    """The error of a `send` whose message waits behind others that are still answered."""
    return Unreachable(
        f"no answer for a message to {topic} within {timeout_s:g} s: too many were sent before it; "
        "it may still be stored"
    )
