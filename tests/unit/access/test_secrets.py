"""Secrets that are stored encrypted, and the signatures that are made with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.access.secrets import SecretBox, Signed, parse_signed

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
# As a RocketMQ server takes it, of the access key abc with the secret abc.
DATE_TIME, SIGNATURE = "20231227T194619Z", "D18A9CBCDDBA9041D6693268FEF15A989E64430B"


@given(st.binary(max_size=256), st.text(max_size=50))
def test_a_secret_comes_back_for_its_owner_and_by_its_key_alone(secret: bytes, owner: str) -> None:
    sealed = SecretBox(KEY).sealed(secret, owner)
    assert SecretBox(KEY).opened(sealed, owner) == secret
    assert SecretBox(OTHER).opened(sealed, owner) is None
    assert SecretBox(KEY).opened(sealed, owner + "x") is None
    assert len(secret) < 4 or secret not in sealed


def test_all_broker_sets_store_the_same_and_two_secrets_share_no_nonce() -> None:
    box = SecretBox(KEY)
    assert box.sealed(b"secret", "a") == SecretBox(KEY).sealed(b"secret", "a")
    sealed = [box.sealed(*one) for one in ((b"secret", "a"), (b"secret", "b"), (b"other", "a"))]
    assert len({one[:13] for one in sealed}) == 3
    # Where the owner ends and the secret begins counts.
    assert box.sealed(b"bc", "a")[:13] != box.sealed(b"c", "ab")[:13]


def test_damaged_bytes_are_no_secret() -> None:
    box = SecretBox(KEY)
    sealed = box.sealed(b"secret", "a")
    for at in range(len(sealed)):
        damaged = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        assert box.opened(damaged, "a") is None
        assert box.opened(sealed[:at], "a") is None


def test_a_key_is_long_and_not_shown() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        SecretBox(b"short")
    assert repr(SecretBox(KEY)) == "SecretBox()"


@pytest.mark.parametrize(
    "credential", ["abc", "abc//Rocketmq", "abc/cn-hangzhou/Rocketmq"], ids=["java", "go", "region"]
)
@pytest.mark.parametrize("signature", [SIGNATURE, SIGNATURE.lower()])
def test_the_signature_of_every_client_is_understood(credential: str, signature: str) -> None:
    signed = parse_signed(
        f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}"
    )
    assert signed == Signed("abc", SIGNATURE)
    assert signed.is_right(b"abc", DATE_TIME)
    assert not signed.is_right(b"abd", DATE_TIME)
    assert not signed.is_right(b"abc", "20231227T194618Z")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer mqk_x",
        f"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature={SIGNATURE}",
        "MQv2-HMAC-SHA1 Credential=abc, SignedHeaders=x-mq-date-time, Signature=00",
        f"MQv2-HMAC-SHA1 Credential=abc, SignedHeaders=host, Signature={SIGNATURE}",
    ],
)
def test_another_authorization_is_none_of_rocketmq(text: str) -> None:
    assert parse_signed(text) is None
