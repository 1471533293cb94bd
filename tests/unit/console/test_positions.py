"""Vectors of queue offsets: text and back, and nothing that is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.aio import QueueRef
from mq.console import positions
from mq.errors import IllegalRequest

REFS = st.builds(
    QueueRef,
    st.just("orders"),
    st.integers(0, 65_535),
    st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
)


@given(st.dictionaries(REFS, st.integers(0, (1 << 63) - 1), max_size=60))
def test_a_vector_survives_its_text(vector: dict[QueueRef, int]) -> None:
    text = positions.encode(vector)
    assert positions.decode("orders", text) == vector
    assert text.isprintable()
    assert " " not in text


def test_queues_that_follow_each_other_are_short() -> None:
    vector = {QueueRef("t", at, "set-0"): at * 10 for at in range(3)}
    assert positions.encode(vector) == "set-0:0:0,10,20"
    assert positions.decode("t", "") == {}


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "set-0:0",
        "set-0:0:",
        "set-0:-1:3",
        "set-0:0:1,",
        "set-0:0:1e3",
        "set-0:65535:1,2",
        "set-0:0:99999999999999999999",
        "set-0:0:9223372036854775808",
        ":0:1",
        "set-0:0:\N{ARABIC-INDIC DIGIT ONE}",
        "a:0:1;" * 20_000,
    ],
)
def test_text_that_is_no_vector_is_refused(text: str) -> None:
    with pytest.raises(IllegalRequest):
        positions.decode("t", text)
