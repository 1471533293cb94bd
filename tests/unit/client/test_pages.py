"""Answers to pulls as pages: what protobuf finds in them, and nothing that is no answer."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mq.client.decode import parse_page
from mq.wire.v1.consumer_pb2 import PullResponse, Run
from mq.wire.v1.message_pb2 import Message

UINT64 = st.integers(0, (1 << 64) - 1)
# Bodies beyond 127 and 16,383 bytes: lengths of one, two and three bytes.
contents = st.builds(Message, body=st.sampled_from([1, 100, 200, 20_000]).map(bytes))
responses = st.builds(
    PullResponse,
    status=st.integers(0, 3),
    next_offset=UINT64,
    start=UINT64,
    end=UINT64,
    read_from=st.text(max_size=9),
    runs=st.lists(
        st.builds(Run, queue_offset=UINT64, messages=st.lists(contents, max_size=2)), max_size=5
    ),
)


@given(responses)
def test_pages_have_what_protobuf_finds(response: PullResponse) -> None:
    page = parse_page(response.SerializeToString())
    for name in ("status", "next_offset", "start", "end", "read_from"):
        assert getattr(page, name) == getattr(response, name)
    assert page.has_messages == bool(response.runs)
    places = zip(page.runs[::2], page.runs[1::2], strict=True)
    assert [Run.FromString(page.data[at:end]) for at, end in places] == list(response.runs)


@given(responses)
def test_a_page_that_was_cut_is_refused(response: PullResponse) -> None:
    data = response.SerializeToString()
    if response.runs:
        with pytest.raises(DecodeError):
            parse_page(data[:-1])


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a",
        b"\x7a\x80",
        b"\x7a\x05abc",
        b"\x7a\x00\x08\x01",
        b"\x7a" + b"\xff" * 11,
        b"\x0d\x00\x00\x00\x00",
        b"\x08",
        b"\x2a\x05x",
        b"\xff" * 12,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_page(data)
