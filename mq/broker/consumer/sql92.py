"""SQL filters: a text over the properties of a message becomes a function that tells whether the
message is delivered. Owns the syntax; `sql92_logic` has the meaning.

    condition   = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation    = { NOT } ( "(" condition ")" | predicate )
    predicate   = TRUE | FALSE
                | value ( = | <> | != | < | <= | > | >= ) value
                | value [ NOT ] BETWEEN value AND value
                | property [ NOT ] IN "(" literal { "," literal } ")"
                | property [ NOT ] LIKE text [ ESCAPE text ]
                | property IS [ NOT ] NULL
    value       = property | literal
    literal     = number | text | TRUE | FALSE
    number      = 5, -0.25, .5, 1e3      text = 'EU', 'it''s'
    property    = region, order.total, content-type; any other name in back-quotes: `2nd try`

Keywords are written in either case, names as they are. TAGS is the tag of the message.

Properties are texts. Compared with a number, one is read as a number, exactly; with TRUE or FALSE,
as true or false in either case; with a text, it is compared as it stands. Texts are equal or not:
< <= > >= and BETWEEN are for numbers, and a text literal there is a mistake. Two properties are
compared as texts by = and <>, as numbers by the others.

A property that is missing (NULL), or that is no number where one is needed, makes a comparison
unknown. NOT unknown is unknown, and only what is true is delivered: `NOT region = 'EU'` leaves out
messages without a region.

Size and depth are bounded: no filter stops the broker. Every mistake is an IllegalFilter that says
where it is and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeAlias

from mq.broker.consumer import sql92_logic as logic
from mq.broker.consumer.sql92_logic import Literal, Property, Test, Value, ValueKind
from mq.errors import IllegalFilter

Predicate: TypeAlias = Callable[[Mapping[str, str]], bool]

TEXT_CHARACTERS_MAX = 4096
# Each level is a few calls deep, in the parser and in the tests it makes.
NESTING_MAX = 32
PATTERN_CHARACTERS_MAX = 256

_KEYWORDS = frozenset(
    ["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"]
)
_TOKEN = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<number> [+-]? (?: [0-9]+ (?: \.[0-9]* )? | \.[0-9]+ ) (?: [eE] [+-]? [0-9]+ )? )
    | (?P<word> [A-Za-z_$] [\w.$]* (?: - [A-Za-z_$] [\w.$]* )* )
    | ` (?P<name> [^`]+ ) `
    | (?P<text> ' (?: [^'] | '' )*+ ' )
    | (?P<symbol> <> | != | <= | >= | [=<>(),] )
    """,
    re.VERBOSE | re.ASCII,
)
_HINTS = {
    "'": "a ' that ends the text",
    '"': "single quotes around a text, back-quotes around a name",
    "`": "a name and a second back-quote",
}


class _Token(NamedTuple):
    kind: str  # number, name, text, symbol, keyword or end
    content: str
    position: int

    def is_one_of(self, kind: str, *contents: str) -> bool:
        return self.kind == kind and self.content in contents

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return self.content if len(self.content) <= 40 else f"{self.content[:40]}..."


def compile_sql(text: str) -> Predicate:
    """Raises IllegalFilter if the text is no condition."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise IllegalFilter(
            f"a SQL filter of {len(text)} characters: at most {TEXT_CHARACTERS_MAX} are allowed"
        )
    test = _Parser(_tokens(text)).parse()
    return lambda properties: test(properties) is True


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            found = _Token("character", text[position], position)
            _fail(found, _HINTS.get(found.content, "a name, a literal or an operator"))
        kind, content = match.lastgroup, match[match.lastgroup]
        if kind == "word":
            is_keyword = content.upper() in _KEYWORDS
            kind, content = ("keyword", content.upper()) if is_keyword else ("name", content)
        if kind != "space":
            tokens.append(_Token(kind, content, position))
        position = match.end()
    tokens.append(_Token("end", "", position))
    return tokens


def _fail(token: _Token, expected: str) -> NoReturn:
    raise IllegalFilter(
        f"SQL filter, character {token.position + 1}: expected {expected}, found {token}"
    )


class _Parser:
    """Recursive descent, one method a rule of the grammar above. Recursive only in parentheses."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Test:
        test = self._condition()
        if self._next.kind != "end":
            _fail(self._next, "AND, OR or the end")
        return test

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _accept(self, kind: str, content: str) -> bool:
        found = self._next.is_one_of(kind, content)
        self._at += found
        return found

    def _expect(self, kind: str, content: str) -> None:
        if not self._accept(kind, content):
            _fail(self._next, content)

    def _condition(self) -> Test:
        tests = [self._conjunction()]
        while self._accept("keyword", "OR"):
            tests.append(self._conjunction())
        return logic.any_of(tests)

    def _conjunction(self) -> Test:
        tests = [self._negation()]
        while self._accept("keyword", "AND"):
            tests.append(self._negation())
        return logic.all_of(tests)

    def _negation(self) -> Test:
        is_negated = False
        while self._accept("keyword", "NOT"):
            is_negated = not is_negated
        test = self._group() if self._next.is_one_of("symbol", "(") else self._predicate()
        return logic.negation(test) if is_negated else test

    def _group(self) -> Test:
        opening = self._take()
        self._depth += 1
        if self._depth > NESTING_MAX:
            _fail(opening, f"at most {NESTING_MAX} parentheses around each other")
        test = self._condition()
        if not self._accept("symbol", ")"):
            _fail(self._next, "AND, OR or )")
        self._depth -= 1
        return test

    def _predicate(self) -> Test:
        start = self._next
        value = self._value("a condition")
        if self._next.is_one_of("symbol", *logic.COMPARISONS):
            return self._comparison(start, value)
        if self._accept("keyword", "IS"):
            is_negated = self._accept("keyword", "NOT")
            self._expect("keyword", "NULL")
            test = logic.is_null(_property(start, value))
            return logic.negation(test) if is_negated else test
        if self._next.is_one_of("keyword", "NOT", "IN", "BETWEEN", "LIKE"):
            return self._word_operator(start, value)
        if start.is_one_of("keyword", "TRUE", "FALSE"):
            return logic.constant(start.content == "TRUE")
        _fail(self._next, f"a comparison, IN, BETWEEN, LIKE or IS behind {start}")

    def _comparison(self, start: _Token, left: Value) -> Test:
        sign = self._take().content
        second = self._next
        right = self._value(f"a property or a literal behind {sign}")
        if sign in logic.ORDERINGS:
            _check_orders(start, left)
            _check_orders(second, right)
            return logic.comparison(sign, left, right, ValueKind.NUMBER)
        kinds = [value.kind for value in (left, right) if isinstance(value, Literal)]
        if len(kinds) == 2 and kinds[0] != kinds[1]:
            _fail(second, f"{kinds[0].value} to compare {start} with")
        return logic.comparison(sign, left, right, kinds[0] if kinds else ValueKind.TEXT)

    def _word_operator(self, start: _Token, value: Value) -> Test:
        is_negated = self._accept("keyword", "NOT")
        if self._accept("keyword", "IN"):
            test = self._membership(_property(start, value))
        elif self._accept("keyword", "BETWEEN"):
            _check_orders(start, value)
            test = self._range(value)
        elif self._accept("keyword", "LIKE"):
            test = self._likeness(_property(start, value))
        else:
            _fail(self._next, "IN, BETWEEN or LIKE behind NOT")
        return logic.negation(test) if is_negated else test

    def _membership(self, value: Property) -> Test:
        self._expect("symbol", "(")
        literals = [self._literal()]
        while self._accept("symbol", ","):
            literals.append(self._literal())
        if not self._accept("symbol", ")"):
            _fail(self._next, ", or )")
        return logic.membership(value, literals)

    def _range(self, value: Value) -> Test:
        low = self._number("BETWEEN")
        self._expect("keyword", "AND")
        high = self._number("AND")
        return logic.all_of(
            [
                logic.comparison("<=", low, value, ValueKind.NUMBER),
                logic.comparison("<=", value, high, ValueKind.NUMBER),
            ]
        )

    def _likeness(self, value: Property) -> Test:
        pattern, text = self._text("a pattern in single quotes")
        if len(text) > PATTERN_CHARACTERS_MAX:
            _fail(pattern, f"a pattern of at most {PATTERN_CHARACTERS_MAX} characters")
        escape = ""
        if self._accept("keyword", "ESCAPE"):
            token, escape = self._text("one character in single quotes")
            if len(escape) != 1:
                _fail(token, "one character in single quotes")
        return logic.likeness(value, _pattern_parts(pattern, text, escape))

    def _text(self, expected: str) -> tuple[_Token, str]:
        token = self._take()
        if token.kind != "text":
            _fail(token, expected)
        return token, _unquote(token)

    def _number(self, behind: str) -> Value:
        token = self._next
        value = self._value(f"a number behind {behind}")
        _check_orders(token, value)
        return value

    def _literal(self) -> Literal:
        token = self._next
        value = self._value("a literal")
        if isinstance(value, Property):
            _fail(token, "a literal")
        return value

    def _value(self, expected: str) -> Value:
        token = self._take()
        match token.kind:
            case "name":
                return Property(token.content)
            case "text":
                return Literal(ValueKind.TEXT, _unquote(token))
            case "number":
                number = logic.number(token.content)
                if number is None:
                    _fail(
                        token,
                        f"a number of at most {logic.NUMBER_CHARACTERS_MAX} characters, "
                        "its exponent of at most 4",
                    )
                return Literal(ValueKind.NUMBER, number)
            case "keyword" if token.content in {"TRUE", "FALSE"}:
                return Literal(ValueKind.BOOLEAN, token.content == "TRUE")
            case "keyword" if token.content == "NULL":
                _fail(token, f"{expected} (a missing property is found by IS NULL)")
            case _:
                _fail(token, expected)


def _unquote(token: _Token) -> str:
    return token.content[1:-1].replace("''", "'")


def _property(token: _Token, value: Value) -> Property:
    if isinstance(value, Literal):
        _fail(token, "a property before IN, LIKE or IS")
    return value


def _check_orders(token: _Token, value: Value) -> None:
    if isinstance(value, Literal) and value.kind is not ValueKind.NUMBER:
        _fail(token, "a number or a property: only numbers are smaller or larger")


def _pattern_parts(token: _Token, pattern: str, escape: str) -> list[str | None]:
    parts: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in {"%", "_", escape}:
                _fail(token, f"%, _ or {escape} behind each {escape} of the pattern")
            parts.append(escaped)
        elif character == "%":
            parts.append(None)
        else:
            parts.append("" if character == "_" else character)
    return parts
