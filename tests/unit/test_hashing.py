"""The hash that all clients and all stored data agree on: it can never change."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.hashing import NO_TAG, text_hash, text_hashes

# From `printf %s <text> | sha256sum`, the first 16 digits, read from the right by pairs.
GOLDEN = {
    "": 0,
    "a": 0xCABD1BCA128197CA,
    "TagA": 0x5F0C6C8B1E9406FA,
    "order-1": 0x8C69D25621E2AF0B,
    "Grüße": 0x3A45C69697033EF8,
    "消息": 0xFAD433E9FA99A14D,
    "😀": 0x47F55E2C343A44F0,
}


def independent(text: str) -> int:
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    pairs = [digest[at : at + 2] for at in range(0, 16, 2)]
    return int("".join(reversed(pairs)), 16)


@pytest.mark.parametrize(("text", "value"), GOLDEN.items())
def test_golden_values_stay(text: str, value: int) -> None:
    assert text_hash(text) == value


def test_no_tag_is_zero() -> None:
    assert text_hash("") == NO_TAG == 0


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_the_hash_is_the_start_of_sha256_little_endian(text: str) -> None:
    assert text_hash(text) == independent(text)
    assert 0 <= text_hash(text) < 1 << 64
    assert text_hash(text) == text_hash(text)


@pytest.mark.parametrize("size", [127, 128, 129, 100_000])
def test_long_texts_are_hashed_like_short_ones(size: int) -> None:
    assert text_hash("é" * size) == independent("é" * size)


def test_texts_that_look_alike_have_hashes_of_their_own() -> None:
    # Composed and decomposed: no normalisation, bytes decide.
    assert len({text_hash(text) for text in ("é", "e\N{COMBINING ACUTE ACCENT}", "e", "E")}) == 4


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300)))
def test_many_texts_have_the_hashes_of_each(texts: list[str]) -> None:
    expected = b"".join(text_hash(text).to_bytes(8, "little") for text in texts)
    assert text_hashes(text.encode() for text in texts) == expected
