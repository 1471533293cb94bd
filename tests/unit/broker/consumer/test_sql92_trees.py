"""Random conditions, written as text and parsed, against a second reading of the same tree that is
as plain as can be: no closures, fractions for numbers, a table for LIKE.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.consumer.sql92 import TEXT_CHARACTERS_MAX, compile_sql

Literal: TypeAlias = str | Fraction | bool


@dataclass(frozen=True)
class Property:
    name: str


@dataclass(frozen=True)
class Compare:
    left: Property | Literal
    sign: str
    right: Property | Literal


@dataclass(frozen=True)
class Between:
    value: Property | Literal
    low: Property | Literal
    high: Property | Literal
    negated: bool


@dataclass(frozen=True)
class In:
    value: Property
    literals: tuple[Literal, ...]
    negated: bool


@dataclass(frozen=True)
class Like:
    value: Property
    pattern: tuple[str | None, ...]  # None: %, "": _
    negated: bool


@dataclass(frozen=True)
class IsNull:
    value: Property
    negated: bool


@dataclass(frozen=True)
class Constant:
    value: bool


@dataclass(frozen=True)
class Not:
    inner: Tree


@dataclass(frozen=True)
class And:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Tree, ...]


Tree: TypeAlias = Compare | Between | In | Like | IsNull | Constant | Not | And | Or

NAMES = ["a", "b", "_c.d", "e-f", "$", "odd name", "like"]
CONTENTS = ["", "1", "1.0", "-2", "3e1", "30", "x", "true", "FALSE", "a%b", "a_b", "aab", "it's"]

texts = st.sampled_from(CONTENTS)
properties = st.sampled_from(NAMES).map(Property)
numbers = st.integers(-40, 40).map(lambda value: Fraction(value, 2))
literals = texts | numbers | st.booleans()
ordered = properties | numbers
signs = st.sampled_from(["=", "<>", "!="])
patterns = st.lists(st.sampled_from(["a", "b", "%", "_", "", None]), max_size=5).map(tuple)

leaves: st.SearchStrategy[Tree] = st.one_of(
    st.builds(Compare, properties, signs, literals | properties),
    st.builds(Compare, literals, signs, properties),
    st.builds(Compare, ordered, st.sampled_from(["<", "<=", ">", ">="]), ordered),
    st.builds(Between, ordered, ordered, ordered, st.booleans()),
    st.builds(In, properties, st.lists(literals, min_size=1, max_size=4).map(tuple), st.booleans()),
    st.builds(Like, properties, patterns, st.booleans()),
    st.builds(IsNull, properties, st.booleans()),
    st.builds(Constant, st.booleans()),
)


def branches(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inner) | st.builds(And, parts) | st.builds(Or, parts)


trees = st.recursive(leaves, branches, max_leaves=12)
messages = st.dictionaries(st.sampled_from(NAMES), texts)


def written(value: Property | Literal) -> str:
    match value:
        case Property(name):
            is_plain = re.fullmatch(r"[\w.$-]+", name) and name != "like"
            return name if is_plain else f"`{name}`"
        case bool():
            return str(value).upper()
        case Fraction():
            return str(value.numerator) if value.denominator == 1 else str(float(value))
        case str():
            return "'" + value.replace("'", "''") + "'"


def written_pattern(pattern: tuple[str | None, ...]) -> str:
    signs = {None: "%", "": "_", "%": "!%", "_": "!_"}
    return "'" + "".join(signs.get(one, one or "") for one in pattern) + "' ESCAPE '!'"


def enclosed(tree: Tree, *looser: type) -> str:
    return f"({printed(tree)})" if isinstance(tree, looser) else printed(tree)


def printed(tree: Tree) -> str:
    """With parentheses only where they are needed, so that the text depends on precedence."""
    match tree:
        case Compare(left, sign, right):
            return f"{written(left)} {sign} {written(right)}"
        case Between(value, low, high, negated):
            verb = "NOT BETWEEN" if negated else "between"
            return f"{written(value)} {verb} {written(low)} AND {written(high)}"
        case In(value, contents, negated):
            verb = "NOT IN" if negated else "in"
            return f"{written(value)} {verb}({', '.join(map(written, contents))})"
        case Like(value, pattern, negated):
            verb = "NOT LIKE" if negated else "like"
            return f"{written(value)} {verb} {written_pattern(pattern)}"
        case IsNull(value, negated):
            return f"{written(value)} {'IS NOT NULL' if negated else 'is null'}"
        case Constant(value):
            return str(value).upper()
        case Not(inner):
            return f"NOT {enclosed(inner, And, Or)}"
        case And(parts):
            return " AND ".join(enclosed(part, Or) for part in parts)
        case Or(parts):
            return " or ".join(enclosed(part) for part in parts)


def read(value: Property | Literal, like: type, message: dict[str, str]) -> Literal | None:
    if not isinstance(value, Property):
        return value
    text = message.get(value.name)
    if text is None or like is str:
        return text
    if like is bool:
        return {"true": True, "false": False}.get(text.lower())
    try:
        return Fraction(text)
    except ValueError:
        return None


def compared(
    left: Property | Literal, sign: str, right: Property | Literal, message: dict[str, str]
) -> bool | None:
    types = [type(value) for value in (left, right) if not isinstance(value, Property)]
    like: type = Fraction if sign in {"<", "<=", ">", ">="} else types[0] if types else str
    one, other = read(left, like, message), read(right, like, message)
    if one is None or other is None:
        return None
    if sign in {"=", "<>", "!="}:
        return (one == other) is (sign == "=")
    assert isinstance(one, Fraction)
    assert isinstance(other, Fraction)
    return {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign]


def alike(text: str, pattern: tuple[str | None, ...]) -> bool:
    reached = {0}
    for part in pattern:
        if part is None:
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(text) and part in {"", text[at]}}
    return len(text) in reached


def opposite(value: bool | None, *, when: bool = True) -> bool | None:
    return value if value is None or not when else not value


def either(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def both(values: list[bool | None]) -> bool | None:
    return opposite(either([opposite(value) for value in values]))


def evaluated(tree: Tree, message: dict[str, str]) -> bool | None:
    match tree:
        case Compare(left, sign, right):
            return compared(left, sign, right, message)
        case Between(value, low, high, negated):
            bounds = [compared(value, ">=", low, message), compared(value, "<=", high, message)]
            return opposite(both(bounds), when=negated)
        case In(value, contents, negated):
            found = [compared(value, "=", content, message) for content in contents]
            return opposite(either(found), when=negated)
        case Like(value, pattern, negated):
            text = message.get(value.name)
            return None if text is None else alike(text, pattern) is not negated
        case IsNull(value, negated):
            return (value.name not in message) is not negated
        case Constant(value):
            return value
        case Not(inner):
            return opposite(evaluated(inner, message))
        case And(parts):
            return both([evaluated(part, message) for part in parts])
        case Or(parts):
            return either([evaluated(part, message) for part in parts])


@settings(max_examples=6 * settings().max_examples)
@given(trees, st.lists(messages, min_size=1, max_size=4))
def test_a_condition_is_read_as_it_was_meant(tree: Tree, several: list[dict[str, str]]) -> None:
    text = printed(tree)
    assert len(text) <= TEXT_CHARACTERS_MAX
    matches, contradicts = compile_sql(text), compile_sql(f"NOT ({text})")
    for message in several:
        expected = evaluated(tree, message)
        assert (matches(message), contradicts(message)) == (expected is True, expected is False)
