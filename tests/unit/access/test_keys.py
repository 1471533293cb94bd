"""API keys: their text, and what is kept of it."""

from __future__ import annotations

from mq.access import keys


def test_a_key_is_read_back_from_its_text_and_proves_itself() -> None:
    key = keys.new()
    assert keys.parse(key.text) == key
    stored = keys.digest(key.secret)
    assert keys.is_right(key.secret, stored)
    assert not keys.is_right(keys.new().secret, stored)
    assert key.secret.encode() not in stored


def test_a_secret_is_not_shown() -> None:
    key = keys.new()
    assert key.secret not in repr(key)
    assert key.id in repr(key)


def test_a_text_of_another_form_is_no_key() -> None:
    key = keys.new().text
    for text in ("", "mqk_", "mqk_abc_def", f"{key}x", f"x{key}", "mqk__" * 9):
        assert keys.parse(text) is None
