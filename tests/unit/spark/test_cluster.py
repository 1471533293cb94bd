"""Queues as users name them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq.client import QueueRef
from mq_spark.errors import MqSparkError
from mq_spark.reading.cluster import resolved


class Counted(set[QueueRef]):
    """Counts the iterations over all of it."""

    walks = 0

    def __iter__(self) -> Iterator[QueueRef]:
        self.walks += 1
        return super().__iter__()


def test_a_queue_is_found_with_its_set_or_without() -> None:
    existing = {QueueRef("t", 0, "a"), QueueRef("t", 1, "a"), QueueRef("u", 0, "b")}
    given = [QueueRef("t", 0), QueueRef("u", 0, "b")]
    assert resolved("assign", given, existing) == {
        QueueRef("t", 0, "a"): QueueRef("t", 0),
        QueueRef("u", 0, "b"): QueueRef("u", 0, "b"),
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([QueueRef("t", 0)], "topic t is in several broker sets: say which one has queue 0, as in"),
        # Also where only one of the sets has a queue of this number.
        ([QueueRef("t", 1)], "say which one has queue 1, as in 'a/1'"),
        ([QueueRef("t", 1, "b")], "there is no queue t b/1; there are: t a/0, t b/0, t a/1"),
        ([QueueRef("v", 0)], "topic v is not among those that are read: t, u"),
        ([QueueRef("u", 0), QueueRef("u", 0, "a")], "u a/0 is named twice"),
    ],
)
def test_a_missing_or_ambiguous_name_is_refused(given: list[QueueRef], told: str) -> None:
    existing = {QueueRef("t", 0, "a"), QueueRef("t", 1, "a"), QueueRef("t", 0, "b")}
    existing.add(QueueRef("u", 0, "a"))
    with pytest.raises(MqSparkError) as caught:
        resolved("startingOffsets", given, existing)
    assert told in str(caught.value)


def test_ten_thousand_names_are_not_looked_for_one_by_one() -> None:
    existing = Counted(QueueRef("t", at, "a") for at in range(10_000))
    found = resolved("startingOffsets", [QueueRef("t", at) for at in range(10_000)], existing)
    assert len(found) == 10_000
    assert existing.walks < 5
