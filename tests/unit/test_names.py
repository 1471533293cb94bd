"""A legal name is safe as a file name, whatever its source."""

from __future__ import annotations

import difflib
import string
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import Code, IllegalGroup, IllegalRequest, IllegalTopic
from mq.names import (
    NAME_CHARACTERS_MAX,
    QUEUE_ID_MAX,
    check_group,
    check_namespace,
    check_topic,
    did_you_mean,
    full_group,
    full_producer_id,
    full_topic,
    is_legal_name,
    local_name,
    local_producer_id,
    namespace_of,
    similar_names,
)

LEGAL_CHARACTERS = string.ascii_letters + string.digits + "%|_-."


def is_refused(topic: str) -> bool:
    try:
        check_topic(topic)
    except IllegalTopic:
        return True
    return False


@pytest.mark.parametrize(
    "topic",
    [
        *("a", "Z", "0", "-", "_", "orders", "shop.orders.v2", "a..b", "acme%shop.orders"),
        *("%RETRY%billing", "%RETRY%shop.billing", "%DLQ%a|b_c-d", "%SYS%HALF", "x" * 127),
    ],
)
def test_letters_digits_and_five_signs_are_legal(topic: str) -> None:
    assert is_legal_name(topic)
    check_topic(topic)


UNSAFE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/a",
    "a\\b",
    ".a",
    "a.",
    "acme%.a",
    "%RETRY%.a",
    "a b",
    " a",
    "a\n",
    "\na",
    "a\0",
    "a:b",
]
LOOKALIKES = ["é", "\N{ARABIC-INDIC DIGIT ONE}", "\N{CYRILLIC SMALL LETTER A}"]


@pytest.mark.parametrize("topic", [*UNSAFE, *LOOKALIKES, "x" * 128, "x" * 1_000_000])
def test_everything_else_is_refused_in_a_short_text(topic: str) -> None:
    assert not is_legal_name(topic)
    with pytest.raises(IllegalTopic) as caught:
        check_topic(topic)
    assert caught.value.code is Code.ILLEGAL_TOPIC
    assert repr(topic[:20])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.text(max_size=20) | st.text(LEGAL_CHARACTERS, min_size=120, max_size=135))
def test_the_check_and_the_question_agree_with_the_rule(name: str) -> None:
    rule = 1 <= len(name) <= NAME_CHARACTERS_MAX and all(one in LEGAL_CHARACTERS for one in name)
    rule = rule and name[0] != "." and name[-1] != "." and "%." not in name
    assert is_legal_name(name) is rule
    assert is_refused(name) is not rule


@given(st.text(LEGAL_CHARACTERS, min_size=1, max_size=NAME_CHARACTERS_MAX))
def test_every_text_of_legal_characters_without_dots_is_legal(name: str) -> None:
    check_topic(name.replace(".", "_"))


def test_names_that_are_too_long_do_not_fill_the_memory() -> None:
    before = is_legal_name.cache_info().currsize
    for size in range(200, 220):
        assert is_refused("x" * size)
    assert is_legal_name.cache_info().currsize == before


def test_limits_are_the_documented_ones() -> None:
    assert NAME_CHARACTERS_MAX == 127
    assert QUEUE_ID_MAX == 65_535


KNOWN = ["orders", "orders-v2", "invoices", "shop-orders", "weather", "Payments"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ordrs", "orders"),
        ("ordres", "orders"),
        ("Orders", "orders"),
        ("payments", "Payments"),
        ("invoice", "invoices"),
        ("shop_orders", "shop-orders"),
        ("wether", "weather"),
    ],
)
def test_a_slip_in_a_name_finds_the_name_that_was_meant(name: str, meant: str) -> None:
    assert similar_names(name, KNOWN)[0] == meant


@pytest.mark.parametrize("name", ["x", "zebra", "o", "%%%%", "billing"])
def test_a_name_unlike_all_others_has_no_similar_one(name: str) -> None:
    assert similar_names(name, KNOWN) == []
    assert did_you_mean(similar_names(name, KNOWN)) == ""


def test_of_thousands_of_names_that_are_alike_only_a_few_are_compared_letter_by_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []
    close_matches = difflib.get_close_matches

    def counting(word: str, possibilities: Collection[str], *limits: Any) -> list[str]:
        compared.append(len(possibilities))
        return close_matches(word, possibilities, *limits)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    known = [f"shop-orders-{number}" for number in range(5_000)]
    found = similar_names("shop-ordres-17", known)
    assert "shop-orders-17" in found
    assert len(found) == 3
    assert compared == [10]


# -- namespaces -----------------------------------------------------------------------------------

NAMESPACES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", fullmatch=True)
LOCAL = st.from_regex(r"[A-Za-z0-9|_-](?:[A-Za-z0-9|_.-]{0,61}[A-Za-z0-9|_-])?", fullmatch=True)
PREFIXES = st.sampled_from(["", "%RETRY%", "%DLQ%"])


@given(NAMESPACES, NAMESPACES, LOCAL, PREFIXES)
def test_a_local_name_has_one_full_one_which_no_other_namespace_knows(
    namespace: str, other: str, local: str, prefix: str
) -> None:
    check_namespace(namespace)
    full = full_topic(namespace, prefix + local)
    check_topic(full)
    assert full == f"{prefix}{namespace}%{local}"
    assert local_name(namespace, full) == prefix + local
    assert namespace_of(full) == namespace
    if other != namespace:
        assert local_name(other, full) is None
    group = full_group(namespace, local)
    check_group(group)
    assert local_name(namespace, group) == local


@given(NAMESPACES, NAMESPACES, st.text(min_size=1))
def test_ids_of_producers_are_apart_too(namespace: str, other: str, producer_id: str) -> None:
    for one in (producer_id, f"%SINK%{producer_id}"):
        full = full_producer_id(namespace, one)
        assert full.startswith("%SINK%") == one.startswith("%SINK%")
        assert local_producer_id(namespace, full) == one
        if other != namespace:
            assert local_producer_id(other, full) is None


@pytest.mark.parametrize(
    "namespace", ["", "a%b", "%", "a b", "ä", "-a", "_a", "a|b", "x" * 64, "a\n"]
)
def test_other_namespaces_are_not_legal(namespace: str) -> None:
    with pytest.raises(IllegalRequest):
        check_namespace(namespace)


@pytest.mark.parametrize("name", ["a%b", "%", "%SYS%HALF", "x" * 123, "%RETRY%a"])
def test_no_name_leads_out_of_its_namespace(name: str) -> None:
    with pytest.raises(IllegalGroup):
        full_group("acme", name)
    if name != "%RETRY%a":
        with pytest.raises(IllegalTopic):
            full_topic("acme", name)


def test_what_has_no_name_stays_without() -> None:
    assert full_topic("acme", "") == full_group("acme", "") == full_producer_id("acme", "") == ""
    assert namespace_of("") == namespace_of("orders") == namespace_of("%RETRY%orders") == ""
    assert namespace_of("%SYS%HALF") == ""


@pytest.mark.parametrize(
    "name", ["orders", "acme", "acme%", "xacme%orders", "acme%a%b", "%SYS%acme"]
)
def test_other_names_are_not_local(name: str) -> None:
    assert local_name("acme", name) is None


def test_similar_names_are_of_the_same_namespace() -> None:
    known = ["acme%orders", "rival%orders", "orders", "acme%invoices"]
    assert similar_names("acme%order", known) == ["acme%orders"]
    assert similar_names("order", known) == ["orders"]
    assert similar_names("none%order", known) == []
