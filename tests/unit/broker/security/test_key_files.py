"""Files with secrets: their form, and who may read them."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from mq.access import keys
from mq.broker.security import key_files
from mq.broker.security.key_files import ClusterKeys, first_admin, secret_box
from mq.errors import IllegalConfig

KEY, OTHER = keys.new(), keys.new()


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "admin", "root:correct horse", mode)
    for read in (first_admin, secret_box, lambda path: ClusterKeys(path, lambda: 0.0)):
        with pytest.raises(IllegalConfig, match="chmod 600") as caught:
            read(path)
        assert "correct horse" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root can be made by root alone")
def test_a_file_of_root_may_be_read_by_the_group_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Secret of Kubernetes: the volume is root's, and of the group of the pod."""
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    assert first_admin(write(tmp_path / "secret", f"root:{KEY.text}", 0o440)).key == KEY
    for mode in (0o444, 0o460):
        with pytest.raises(IllegalConfig, match="chmod 600"):
            first_admin(write(tmp_path / "open", f"root:{KEY.text}", mode))


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IllegalConfig, match="cannot be read"):
        first_admin(str(tmp_path / "none"))
    with pytest.raises(IllegalConfig):
        first_admin(str(tmp_path))
    with pytest.raises(IllegalConfig, match="more than"):
        first_admin(write(tmp_path / "large", "x" * 5_000))


def test_the_first_administrator_has_a_password_or_a_key(tmp_path: Path) -> None:
    admin = first_admin(write(tmp_path / "a", "root:correct: horse\n", 0o400))
    assert admin == ("root", None, "correct: horse")
    assert "horse" not in repr(admin)
    assert first_admin(write(tmp_path / "b", f"root:{KEY.text}")) == ("root", KEY, "")


@pytest.mark.parametrize(
    "text", ["", "root", ":secret of nobody", "root:short", "root:mqk_wrong", "a:12345678\nb:x\n"]
)
def test_another_form_is_refused_without_a_word_of_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(IllegalConfig) as caught:
        first_admin(write(tmp_path / "admin", text))
    assert not any(part in str(caught.value) for part in ("short", "mqk_wrong", "12345678"))


def test_brokers_present_the_first_key_and_accept_all(tmp_path: Path) -> None:
    path, now_s = tmp_path / "cluster", [0.0]
    found = ClusterKeys(write(path, f"{KEY.text}\n{OTHER.text}\n"), lambda: now_s[0])
    assert found.metadata == [("authorization", f"Bearer {KEY.text}")]
    assert found.accepts(KEY)
    assert found.accepts(OTHER)
    assert not found.accepts(keys.new())
    assert not found.accepts(keys.ApiKey(KEY.id, OTHER.secret))
    assert KEY.secret not in repr(found)
    # It is read again, though not at once, and a mistake changes nothing.
    write(path, OTHER.text)
    assert found.accepts(KEY)
    now_s[0] += key_files._CHECK_S
    assert not found.accepts(KEY)
    assert found.metadata == [("authorization", f"Bearer {OTHER.text}")]
    write(path, "no key")
    now_s[0] += key_files._CHECK_S
    assert found.accepts(OTHER)
    path.unlink()
    now_s[0] += key_files._CHECK_S
    assert found.accepts(OTHER)


def test_without_a_file_no_key_is_that_of_the_cluster() -> None:
    none = ClusterKeys("", lambda: 0.0)
    assert none.metadata == []
    assert not none.accepts(KEY)


@pytest.mark.parametrize(
    "text",
    ["", "no key", f"{KEY.text}\n" * 3, f"{KEY.text}\nno key"],
    ids=["empty", "no key", "three keys", "a key and more"],
)
def test_keys_of_another_form_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(IllegalConfig, match="API key") as caught:
        ClusterKeys(write(tmp_path / "cluster", text), lambda: 0.0)
    assert KEY.secret not in str(caught.value)


def test_a_key_that_encrypts_is_long(tmp_path: Path) -> None:
    assert secret_box("") is None
    text = base64.b64encode(bytes(range(32))).decode()
    box = secret_box(write(tmp_path / "key", text + "\n"))
    same = secret_box(write(tmp_path / "same", text))
    assert box is not None
    assert same is not None
    assert same.opened(box.sealed(b"secret", "a"), "a") == b"secret"
    with pytest.raises(IllegalConfig, match="at least 32"):
        secret_box(write(tmp_path / "short", "short"))


def test_every_byte_of_a_random_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(200, 231)) + b"\n")
    path.chmod(0o600)
    assert secret_box(str(path)) is not None
