"""Requests of a Transact stream as bytes: a half batch, an end."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mq.client.encode import Encoded
from mq.client.transaction.transaction_model import Checks, Resolution
from mq.wire import varint
from mq.wire.v1.message_pb2 import Half, RawBatch
from mq.wire.v1.transaction_pb2 import (
    RESOLUTION_COMMIT,
    RESOLUTION_ROLLBACK,
    EndTransactionRequest,
    TransactRequest,
)


def half_batch(
    topic: str,
    queue_id: int,
    producer_id: str,
    sequence: int,
    producer_group: str,
    checks: Checks,
    message: Encoded,
) -> bytes:
    """A prepared batch of one message."""
    frame, tag_hash, key_hashes, _ = message
    half = Half(
        producer_group=producer_group,
        first_check_ms=_ms(checks.first_check_s),
        check_interval_ms=_ms(checks.check_interval_s),
        checks_max=checks.checks_max or 0,
    )
    head = RawBatch(
        topic=topic,
        queue_id=queue_id,
        producer_id=producer_id,
        sequence=sequence,
        tag_hashes=struct.pack("<Q", tag_hash),
        frame_sizes=struct.pack("<I", len(frame)),
        key_hashes=struct.pack(f"<{len(key_hashes)}Q", *key_hashes),
        key_counts=struct.pack("<I", len(key_hashes)) if key_hashes else b"",
        half=half.SerializeToString(),
    )
    return head.SerializeToString() + frame


def half_request(request_id: int, batch: bytes) -> bytes:
    """`half` is field 3 of a TransactRequest, as it is."""
    return b"".join((b"\x08", varint.encode(request_id), b"\x1a", varint.encode(len(batch)), batch))


def end_request(request_id: int, transaction_id: str, resolution: Resolution) -> bytes:
    is_commit = resolution is Resolution.COMMIT
    end = EndTransactionRequest(
        transaction_id=transaction_id,
        resolution=RESOLUTION_COMMIT if is_commit else RESOLUTION_ROLLBACK,
    )
    return TransactRequest(request_id=request_id, end=end).SerializeToString()


def more_request(requests: Sequence[bytes]) -> bytes:
    """These as one: `more` is field 15 of a TransactRequest."""
    if len(requests) == 1:
        return requests[0]
    return b"".join(part for one in requests for part in (b"\x7a", varint.encode(len(one)), one))


def _ms(seconds: float | None) -> int:
    """0: as the broker is configured."""
    return 0 if seconds is None else max(1, round(seconds * 1000))
