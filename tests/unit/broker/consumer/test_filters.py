"""Filters of subscriptions: what they let through, how they are compared, what is refused."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consumer.filters import (
    TAGS_CHARACTERS_MAX,
    TAGS_MAX,
    CompiledFilter,
    canonical,
    compile_filter,
    select,
)
from mq.errors import IllegalFilter
from mq.hashing import text_hash
from mq.names import is_legal_tag
from mq.store.reading import Run
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Batch, Message
from tests.support.naive_wire import frame

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERYTHING = [Filter(), Filter(tags=""), Filter(tags=" * "), Filter(sql=""), Filter(sql=" \n")]
UNREADABLE = b"\x0a\xff"  # a body that is longer than the message


def run_of(
    contents: Sequence[bytes], queue_offset: int = 0, log_offset: int = 0, stored_at_ms: int = 5
) -> Run:
    frames = [frame(content) for content in contents]
    return Run(
        queue_offset=queue_offset,
        message_count=len(frames),
        log_offset=log_offset,
        stored_at_ms=stored_at_ms,
        frames=memoryview(b"".join(frames)),
        sizes=np.array(list(map(len, frames)), np.uint32),
    )


def serialised(*bodies: bytes) -> list[bytes]:
    return [Message(body=body).SerializeToString() for body in bodies]


def wanted(message: Message) -> bool:
    return message.body.startswith(b"+")


@pytest.mark.parametrize("everything", EVERYTHING)
def test_no_filter_lets_everything_through(everything: Filter) -> None:
    assert compile_filter(everything) == CompiledFilter(frozenset(), None)
    assert canonical(everything) == "*"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a", ["a"]),
        ("  b ||a||  b", ["a", "b"]),
        ("größe || x-1.2/3", ["größe", "x-1.2/3"]),
        ("a" * TAGS_CHARACTERS_MAX, ["a" * TAGS_CHARACTERS_MAX]),
        (" || ".join(f"t{n:02}" for n in range(TAGS_MAX)), [f"t{n:02}" for n in range(TAGS_MAX)]),
    ],
)
def test_tags_are_chosen_by_their_hashes(text: str, tags: list[str]) -> None:
    compiled = compile_filter(Filter(tags=text))
    assert compiled == CompiledFilter(frozenset(map(text_hash, tags)), None)
    assert canonical(Filter(tags=text)) == "TAG " + " || ".join(tags)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a || ", "'' is no tag"),
        ("|| a", "'' is no tag"),
        ("||", "'' is no tag"),
        ("a || || b", "'' is no tag"),
        ("a || *", r"'\*' is no tag"),
        ("a | b", "'a | b' is no tag"),
        ("a ||| b", r"'\| b' is no tag"),
        ("a OR b", "'a OR b' is no tag"),
        ("a\tb", r"'a\\tb' is no tag"),
        ("||".join(f"t{n}" for n in range(TAGS_MAX + 1)), "65 tags in one filter: at most 64"),
        ("a" * (TAGS_CHARACTERS_MAX + 1), "tags of 4097 characters: at most 4096"),
    ],
)
def test_an_illegal_tag_is_refused(text: str, reason: str) -> None:
    for use in (compile_filter, canonical):
        with pytest.raises(IllegalFilter, match=reason) as error:
            use(Filter(tags=text))
        assert len(str(error.value)) < 1000


def test_sql_is_asked_for_each_message() -> None:
    chosen = Filter(sql="  region = 'EU' AND amount > 100 ")
    tag_hashes, predicate = compile_filter(chosen)
    assert tag_hashes == frozenset()
    assert predicate is not None
    assert predicate(Message(properties={"region": "EU", "amount": "101"}))
    assert not predicate(Message(properties={"region": "EU", "amount": "100"}))
    assert not predicate(Message(properties={"region": "EU"}))
    assert canonical(chosen) == "SQL region = 'EU' AND amount > 100"


def test_sql_knows_the_tag_as_tags() -> None:
    _, predicate = compile_filter(Filter(sql="TAGS = 'a' AND region = 'EU'"))
    assert predicate is not None
    message = Message(tag="a", properties={"region": "EU", "TAGS": "b"})
    assert predicate(message)
    assert dict(message.properties) == {"region": "EU", "TAGS": "b"}
    assert not predicate(Message(tag="b", properties={"region": "EU", "TAGS": "a"}))


def test_a_message_without_a_tag_has_no_tags() -> None:
    _, predicate = compile_filter(Filter(sql="TAGS IS NULL"))
    assert predicate is not None
    assert predicate(Message(properties={"TAGS": "b"}))
    assert not predicate(Message(tag="a"))


def test_a_mistake_in_sql_is_refused() -> None:
    for _ in range(2):
        with pytest.raises(IllegalFilter, match="character 9: expected"):
            compile_filter(Filter(sql="  region ="))


def test_the_canonical_text_tells_tags_from_sql() -> None:
    assert canonical(Filter(tags="a")) != canonical(Filter(sql="a"))


def test_select_keeps_neighbours_together() -> None:
    bodies = (b"-0", b"+1", b"+22", b"-3" * 100, b"+4")
    run = run_of(serialised(*bodies), queue_offset=70, log_offset=1000)
    starts = [0, *accumulate(run.sizes.tolist())]
    first, second = select([run], wanted)
    assert (first.queue_offset, first.message_count) == (71, 2)
    assert first.log_offset == 1000 + starts[1]
    assert first.sizes.tolist() == run.sizes.tolist()[1:3]
    assert first.frames == run.frames[starts[1] : starts[3]]
    assert (second.queue_offset, second.message_count) == (74, 1)
    assert second.log_offset == 1000 + starts[4]
    assert second.sizes.tolist() == run.sizes.tolist()[4:]
    assert second.frames == run.frames[starts[4] :]
    assert first.stored_at_ms == second.stored_at_ms == 5


def test_select_leaves_a_run_as_it_is_when_all_of_it_is_wanted() -> None:
    runs = [run_of(serialised(b"+", b"+")), run_of(serialised(b"-")), run_of(serialised(b"+"))]
    kept = select(runs, wanted)
    assert kept[0] is runs[0]
    assert kept[1] is runs[2]
    assert len(kept) == 2
    assert select([], wanted) == []


def test_a_message_that_cannot_be_read_is_left_out_alone() -> None:
    run = run_of([*serialised(b"+0", b"-1"), UNREADABLE, *serialised(b"+3")], queue_offset=10)
    kept = select([run], wanted)
    assert [part.queue_offset for part in kept] == [10, 13]
    assert select([run_of([UNREADABLE])], lambda _: True) == []


@given(
    st.lists(
        st.lists(
            st.just(UNREADABLE)
            | st.binary(max_size=200).map(lambda body: serialised(b"+" + body)[0])
            | st.binary(max_size=200).map(lambda body: serialised(b"-" + body)[0]),
            min_size=1,
            max_size=8,
        ),
        max_size=3,
    )
)
def test_select_keeps_exactly_the_messages_that_pass(contents: list[list[bytes]]) -> None:
    runs, expected, log_offset = [], [], 0
    for number, messages in enumerate(contents):
        log_offset += 13
        runs.append(run_of(messages, 100 * number, log_offset, number))
        for place, content in enumerate(messages):
            if content != UNREADABLE and wanted(message := Message.FromString(content)):
                expected.append((100 * number + place, log_offset, number, message))
            log_offset += len(frame(content))
    kept, found = select(runs, wanted), []
    for run in kept:
        log_offset = run.log_offset
        messages_of_run = Batch.FromString(bytes(run.frames)).messages
        assert len(messages_of_run) == run.message_count == len(run.sizes)
        for place, (message, size) in enumerate(
            zip(messages_of_run, run.sizes.tolist(), strict=True)
        ):
            found.append((run.queue_offset + place, log_offset, run.stored_at_ms, message))
            log_offset += size
        assert log_offset == run.log_offset + len(run.frames)
    assert found == expected
    # No run starts where another part of the same one ends: they would have been one.
    ends = {(run.queue_offset + run.message_count, run.stored_at_ms) for run in kept}
    assert not ends & {(run.queue_offset, run.stored_at_ms) for run in kept}


@given(st.text("ab|* \t\u2003\n*", max_size=5) | st.text(max_size=8))
def test_a_tag_is_legal_exactly_if_a_filter_can_ask_for_it(text: str) -> None:
    try:
        asked = compile_filter(Filter(tags=text)).tag_hashes
    except (IllegalFilter, UnicodeEncodeError):
        asked = frozenset()
    assert (asked == {text_hash(text)}) == (is_legal_tag(text) and text != "")
