"""Handles: a lease comes back as it was given, and other bytes are no handle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mq.broker.queue import Queue
from mq.broker.receive.leases import Handle, lease_bytes, parse_handles
from mq.wire.v1.consumer_pb2 import Handle as WireHandle

NUMBERS = st.integers(1, (1 << 64) - 1)


@given(
    st.text("abc%|_-", min_size=1, max_size=134),
    st.integers(0, 65_535),
    NUMBERS,
    st.integers(0, 1 << 62),
    st.integers(0, (1 << 32) - 1),
)
def test_a_handle_says_where_its_messages_are(
    topic: str, queue_id: int, number: int, queue_offset: int, count: int
) -> None:
    lease = lease_bytes(Queue(topic, queue_id), number)
    (found,) = parse_handles([WireHandle(lease=lease, queue_offset=queue_offset, count=count)])
    expected = Handle(Queue(topic, queue_id), number, queue_offset, queue_offset + max(1, count))
    assert found == expected


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_decoded_as_a_handle_or_refused(leases: list[bytes]) -> None:
    found = parse_handles([WireHandle(lease=one) for one in leases])
    assert len(found) == len(leases)
    for lease, handle in zip(leases, found, strict=True):
        assert handle is None or lease_bytes(handle.queue, handle.lease) == lease


def test_lease_0_is_no_handle() -> None:
    assert parse_handles([WireHandle(lease=lease_bytes(Queue("t", 0), 0))]) == [None]
