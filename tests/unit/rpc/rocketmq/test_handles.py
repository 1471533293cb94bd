"""Handles as text: what was made is read back, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.queue import Queue
from mq.broker.receive.leases import Handle, lease_bytes
from mq.rpc.rocketmq import handles
from mq.rpc.rocketmq.codes import Refused

NAMES = st.text("abcXYZ019%|_-", min_size=1, max_size=127)
U64 = st.integers(0, (1 << 64) - 2)


@given(NAMES, st.integers(0, 65_535), st.integers(1, (1 << 64) - 1), U64)
def test_a_receipt_names_its_message(topic: str, queue_id: int, lease: int, at: int) -> None:
    text = handles.receipt(lease_bytes(Queue(topic, queue_id), lease), at)
    assert handles.parse_receipt(text) == Handle(Queue(topic, queue_id), lease, at, at + 1)


@given(NAMES, NAMES, st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.text(max_size=64))
def test_a_recall_names_its_message(
    broker_set: str, topic: str, at: int, deliver_at_ms: int, message_id: str
) -> None:
    made = handles.Recall(broker_set, topic, at, deliver_at_ms, message_id)
    assert handles.parse_recall(made.text()) == made


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.hex()))
def test_other_texts_are_refused_or_name_something(text: str) -> None:
    handles.parse_receipt(text)
    try:
        handles.parse_recall(text)
    except Refused:
        return


@pytest.mark.parametrize("text", ["", "x", "not base64 at all!", "AAAA", "é", "A" * 2_000])
def test_a_text_that_is_no_handle_is_none(text: str) -> None:
    assert handles.parse_receipt(text) is None
    with pytest.raises(Refused):
        handles.parse_recall(text)
