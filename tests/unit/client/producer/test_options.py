"""The options of a producer are checked when it is made."""

from __future__ import annotations

import pytest

from mq.client.producer.sender import ProducerOptions
from mq.errors import IllegalConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"ack": "all"},
        {"timeout_s": 0},
        {"batch_bytes": 0},
        {"buffer_bytes": -1},
        {"in_flight_max": 0},
        {"retries": -1},
        {"linger_ms": -1},
        {"compress_above_bytes": -1},
        {"producer_id": ""},
        {"producer_id": "x" * 128},
        {"producer_id": "a\nb"},
    ],
)
def test_illegal_options_are_refused_by_name(wrong: dict[str, object]) -> None:
    [name] = wrong
    with pytest.raises(IllegalConfig, match=name):
        ProducerOptions(**wrong)  # type: ignore[arg-type]
