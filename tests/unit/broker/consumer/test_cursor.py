"""Messages of a queue that a client has and is not done with, and reports of progress that end
them.
"""

from __future__ import annotations

from mq.broker.consumer.cursor import Cursor, Sent, returned


def cursor_with(*sent: Sent) -> Cursor:
    cursor = Cursor(0, 0)
    for one in sent:
        cursor.add_sent(one, 1.0)
    cursor.next_offset = sent[-1].end
    return cursor


def test_progress_ends_the_deliveries_before_it_and_tells_their_bytes() -> None:
    cursor = cursor_with(Sent(10, 10, 1_000), Sent(20, 10, 500), Sent(30, 10, 300))
    assert cursor.cached() == (30, 1_800)
    assert cursor.advance(9, 2.0) == 0
    assert cursor.advance(25, 2.0) == 1_500
    # Half of the last one is left.
    assert cursor.cached() == (5, 150)
    assert cursor.advance(30, 2.0) == 300
    assert cursor.cached() == (0, 0)


def test_messages_from_another_node_count_without_bytes() -> None:
    cursor = cursor_with(Sent(10, 10, 1_000))
    cursor.advance(4, 2.0)
    cursor.has_in_hand(50, 3.0)
    assert cursor.cached() == (46, 0)
    assert cursor.advance(50, 2.0) == 0


def test_a_queue_that_comes_back_goes_on_unless_its_position_was_changed() -> None:
    told = cursor_with(Sent(10, 10, 1_000))
    told.is_told = told.is_told_of_end = True
    assert returned(told, 10) is told
    assert (told.epoch, told.cached()) == (1, (10, 1_000))
    moved = cursor_with(Sent(10, 10, 1_000))
    moved.is_told = moved.is_told_of_end = True
    anew = returned(moved, 3)
    assert (anew.next_offset, anew.epoch, anew.cached()) == (3, 1, (0, 0))
