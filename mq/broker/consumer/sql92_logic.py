"""Semantics of SQL filters, as closures: three-valued logic over properties, which are texts.

A test answers True, False, or None for unknown: a property that is missing, or that cannot be read
as what it is compared with. Its time is bounded by the sizes of filter and property; none raises.
Knows no syntax.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

Test: TypeAlias = Callable[[Mapping[str, str]], bool | None]
Content: TypeAlias = str | Decimal | bool
_Reader: TypeAlias = Callable[[Mapping[str, str]], Content | None]

# The whole of a message's properties may have this size; of one that breaks the rule, LIKE knows
# nothing. Pattern and text together bound the time of a match.
LIKE_TEXT_CHARACTERS_MAX = 16 << 10
NUMBER_CHARACTERS_MAX = 64

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_BOOLEANS = {"true": True, "false": False}

ORDERINGS: dict[str, Callable[..., bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARISONS: dict[str, Callable[..., bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    **ORDERINGS,
}


class ValueKind(enum.Enum):
    TEXT = "text"
    NUMBER = "a number"
    BOOLEAN = "TRUE or FALSE"


class Property(NamedTuple):
    name: str


class Literal(NamedTuple):
    kind: ValueKind
    content: Content


Value: TypeAlias = Property | Literal


def number(text: str) -> Decimal | None:
    """Exact, so that a large order number equals itself only. None when the text is no number."""
    if len(text) > NUMBER_CHARACTERS_MAX or not _NUMBER.fullmatch(text):
        return None
    return Decimal(text)


def boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text[:6].lower())


def constant(value: bool) -> Test:  # noqa: FBT001 # it is the whole of the test
    return lambda _: value


def negation(test: Test) -> Test:
    def not_test(properties: Mapping[str, str]) -> bool | None:
        value = test(properties)
        return None if value is None else not value

    return not_test


def all_of(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def and_test(properties: Mapping[str, str]) -> bool | None:
        result: bool | None = True
        for test in tests:
            value = test(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return and_test


def any_of(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def or_test(properties: Mapping[str, str]) -> bool | None:
        result: bool | None = False
        for test in tests:
            value = test(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return or_test


def comparison(sign: str, left: Value, right: Value, kind: ValueKind) -> Test:
    """Properties are read as `kind`; literals are of it already."""
    compare, read_left, read_right = COMPARISONS[sign], _reader(left, kind), _reader(right, kind)

    def compare_test(properties: Mapping[str, str]) -> bool | None:
        first, second = read_left(properties), read_right(properties)
        return None if first is None or second is None else compare(first, second)

    return compare_test


def membership(value: Property, literals: Iterable[Literal]) -> Test:
    """The same as being equal to one of them or the other."""
    contents: dict[ValueKind, set[Content]] = {}
    for literal in literals:
        contents.setdefault(literal.kind, set()).add(literal.content)
    return any_of([_is_one_of(_reader(value, kind), contents[kind]) for kind in contents])


def is_null(value: Property) -> Test:
    name = value.name
    return lambda properties: properties.get(name) is None


def likeness(value: Property, parts: Sequence[str | None]) -> Test:
    """`parts` is the pattern: a text for itself, "" for any one character, None for any number of
    them.
    """
    name, matches = value.name, _like_pattern(parts).fullmatch

    def like_test(properties: Mapping[str, str]) -> bool | None:
        text = properties.get(name)
        if text is None or len(text) > LIKE_TEXT_CHARACTERS_MAX:
            return None
        return matches(text) is not None

    return like_test


def _like_pattern(parts: Sequence[str | None]) -> re.Pattern[str]:
    """The first place where a piece between two % fits is as good as any later one, so each is a
    group that is never tried again: no piling up of attempts.
    """
    pieces = [""]
    for part in parts:
        if part is None:
            pieces.append("")
        else:
            pieces[-1] += re.escape(part) or "."
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    first, *middle, last = pieces
    groups = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{groups}.*{last}", re.DOTALL)


def _is_one_of(read: _Reader, contents: set[Content]) -> Test:
    def in_test(properties: Mapping[str, str]) -> bool | None:
        content = read(properties)
        return None if content is None else content in contents

    return in_test


def _reader(value: Value, kind: ValueKind) -> _Reader:
    if isinstance(value, Literal):
        content = value.content
        return lambda _: content
    name = value.name
    if kind is ValueKind.TEXT:
        return lambda properties: properties.get(name)
    read: Callable[[str], Content | None] = number if kind is ValueKind.NUMBER else boolean

    def read_property(properties: Mapping[str, str]) -> Content | None:
        text = properties.get(name)
        return None if text is None else read(text)

    return read_property
