"""Filters of a subscription: tags by their hashes, SQL by opening each message.

Compiling refuses every filter that could not work, so that a consumer hears of it when it
subscribes. Equal filters have equal canonical texts; that is how members of a group are compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from mq.broker.consumer.sql92 import compile_sql
from mq.errors import IllegalFilter, MalformedBatch
from mq.hashing import text_hash
from mq.names import TAG_CHARACTERS_MAX, is_legal_tag
from mq.store.batch import message_of_frame
from mq.store.reading import Run
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Batch, Message

MessageTest: TypeAlias = Callable[[Message], bool]

ALL_MESSAGES = "*"
TAGS_MAX = 64
# Of the whole text: one tag of the most characters can be asked for.
TAGS_CHARACTERS_MAX = TAG_CHARACTERS_MAX
# The tag of a message, for SQL; a property of this name is hidden by it.
TAG_PROPERTY = "TAGS"


class CompiledFilter(NamedTuple):
    """A message is delivered when it has one of the tags, if there are any, and passes the
    predicate, if there is one.
    """

    tag_hashes: frozenset[int]
    predicate: MessageTest | None


_EVERYTHING = CompiledFilter(frozenset(), None)


def compile_filter(wanted: Filter) -> CompiledFilter:
    """Raises IllegalFilter with the mistake."""
    sql = wanted.sql.strip()
    if sql:
        return CompiledFilter(frozenset(), _sql_predicate(sql))
    tags = _tags(wanted.tags)
    return CompiledFilter(frozenset(map(text_hash, tags)), None) if tags else _EVERYTHING


def canonical(wanted: Filter) -> str:
    """The same for filters that are written differently and mean the same, as far as is easily
    seen. IllegalFilter when tags are not legal; SQL is not looked into.
    """
    sql = wanted.sql.strip()
    if sql:
        return f"SQL {sql}"
    tags = _tags(wanted.tags)
    return f"TAG {' || '.join(tags)}" if tags else ALL_MESSAGES


def select(runs: Iterable[Run], predicate: MessageTest) -> list[Run]:
    """The runs without the messages that do not match; messages that stay neighbours stay in one
    run.

    A message that cannot be read has no properties to be chosen by: it is left out.
    """
    return [part for run in runs for part in _parts(run, _verdicts(run, predicate))]


def _tags(text: str) -> list[str]:
    """Sorted, each one once; none: all messages."""
    text = text.strip()
    if text in {"", ALL_MESSAGES}:
        return []
    if len(text) > TAGS_CHARACTERS_MAX:
        raise IllegalFilter(
            f"tags of {len(text)} characters: at most {TAGS_CHARACTERS_MAX} are allowed"
        )
    tags = sorted({tag.strip() for tag in text.split("||")})
    for tag in tags:
        if not tag or not is_legal_tag(tag):
            raise IllegalFilter(
                f"tags {text[:200]!r}: {tag[:200]!r} is no tag; write one word, several of them "
                f"as a || b, or {ALL_MESSAGES} alone for all messages"
            )
    if len(tags) > TAGS_MAX:
        raise IllegalFilter(f"{len(tags)} tags in one filter: at most {TAGS_MAX} are allowed")
    return tags


# What is longer than a filter may be raises, and is not kept.
@functools.lru_cache(maxsize=1024)
def _sql_predicate(sql: str) -> MessageTest:
    matches = compile_sql(sql)
    if TAG_PROPERTY not in sql:
        return lambda message: matches(message.properties)

    def matches_with_tag(message: Message) -> bool:
        properties = dict(message.properties)
        properties.pop(TAG_PROPERTY, None)
        if message.tag:
            properties[TAG_PROPERTY] = message.tag
        return matches(properties)

    return matches_with_tag


def _verdicts(run: Run, predicate: MessageTest) -> Sequence[bool]:
    """All messages are parsed at once, which is several times faster than one by one; one by one
    only when a message among them cannot be read.
    """
    try:
        messages = Batch.FromString(run.frames).messages  # type: ignore[arg-type] # a buffer is fine
    except DecodeError:
        return [_passes(frame, predicate) for frame in _frames(run)]
    return [predicate(message) for message in messages]


def _frames(run: Run) -> Iterator[memoryview]:
    start = 0
    for size in run.sizes.tolist():
        yield run.frames[start : start + size]
        start += size


def _passes(frame: memoryview, predicate: MessageTest) -> bool:
    try:
        message = Message.FromString(message_of_frame(frame))  # type: ignore[arg-type] # as above
    except (DecodeError, MalformedBatch):
        return False
    return predicate(message)


def _parts(run: Run, verdicts: Sequence[bool]) -> Iterator[Run]:
    """The stretches of messages that pass, as runs of their own."""
    if all(verdicts):
        yield run
        return
    bounds = np.concatenate(([0], np.cumsum(run.sizes, dtype=np.int64))).tolist()
    for passes, group in groupby(range(len(verdicts)), key=verdicts.__getitem__):
        if passes:
            places = list(group)
            first, end = places[0], places[-1] + 1
            yield run._replace(
                queue_offset=run.queue_offset + first,
                message_count=end - first,
                log_offset=run.log_offset + bounds[first],
                frames=run.frames[bounds[first] : bounds[end]],
                sizes=run.sizes[first:end],
            )
