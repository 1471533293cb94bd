"""The arguments about security: what contradicts itself is refused, what changes is read again, and
secrets show nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mq.client.cluster import channels as security_module
from mq.client.cluster.channels import Credentials, Security
from mq.client.cluster.connection import ConnectionOptions
from mq.client.consumer.push import PushOptions
from mq.client.producer.sender import ProducerOptions
from mq.errors import IllegalConfig
from tests.support.certificates import Authority

SECRET = "mqk_abcdefghijkl_" + "s" * 43
OTHER = "mqk_abcdefghijkl_" + "t" * 43


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_module, "LOOK_S", 0.0)


def written(path: Path, text: str) -> Path:
    """Replaced at once, as a careful program does."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(path)
    return path


def headers(credentials: Credentials) -> dict[str, Any]:
    return dict(credentials.metadata or ())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cert": "c"}, "cert is given without key: give both cert and key"),
        ({"key": "k"}, "key is given without cert: give both cert and key"),
        ({"api_key": "a", "api_key_file": "f"}, "api_key and api_key_file are two keys: give one"),
        ({"api_key": " "}, "api_key holds no API key"),
        ({"namespace": "a b"}, "namespace 'a b' is no name"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given: Any, text: str) -> None:
    with pytest.raises(IllegalConfig, match=text):
        ConnectionOptions("a:1", **given)


@pytest.mark.parametrize("given", [{"tls": True}, {"ca": "x"}, {"cert": "x", "key": "y"}])
def test_files_of_tls_imply_tls(given: Any) -> None:
    assert Security(**given).is_tls
    assert not Security(namespace="n").is_tls


@pytest.mark.parametrize(
    "options",
    [
        ConnectionOptions("a:1", api_key=SECRET),
        ProducerOptions(api_key=SECRET),
        PushOptions("a:1", "g", "t", print, api_key=SECRET),
    ],
)
def test_a_secret_is_in_no_repr(options: object) -> None:
    assert "sss" not in repr(options)
    assert "sss" not in str(options)


@pytest.mark.parametrize("broken", [f"{SECRET}\nmore", f"{SECRET} more", f"{SECRET}\u20ac"])
def test_a_key_that_is_no_header_is_refused_without_being_shown(
    broken: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "key", broken)
    for given in ({"api_key": broken}, {"api_key_file": file}, {"api_key": lambda: broken}):
        with pytest.raises(IllegalConfig, match="holds no API key") as raised:
            Credentials(Security(**given))
        assert "sss" not in str(raised.value)


def test_each_call_says_the_key_and_the_namespace() -> None:
    assert Credentials().metadata is None
    assert headers(Credentials(Security(api_key=SECRET, namespace="shop"))) == {
        "authorization": f"Bearer {SECRET}",
        "mq-namespace": "shop",
    }


def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = written(tmp_path / "key", f"{SECRET}\n")
    credentials = Credentials(Security(api_key_file=file))
    before = credentials.metadata
    assert not credentials.renew()
    assert credentials.metadata is before
    assert credentials.generation == 0
    written(file, OTHER)
    assert not credentials.renew()  # channels stay
    assert headers(credentials) == {"authorization": f"Bearer {OTHER}"}
    assert credentials.generation == 1


@pytest.mark.parametrize("content", ["", None])
def test_the_last_key_counts_while_its_file_is_empty_or_gone(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "key", SECRET)
    credentials = Credentials(Security(api_key_file=file))
    if content is None:
        file.unlink()
    else:
        written(file, content)
    credentials.renew()
    assert headers(credentials) == {"authorization": f"Bearer {SECRET}"}
    assert "the former one stays in use" in caplog.text
    assert "sss" not in caplog.text
    written(file, OTHER)
    credentials.renew()
    assert headers(credentials) == {"authorization": f"Bearer {OTHER}"}


def test_files_are_looked_at_every_few_seconds_and_when_a_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_module, "LOOK_S", 1_000.0)
    file = written(tmp_path / "key", SECRET)
    credentials = Credentials(Security(api_key_file=file))
    credentials.renew()
    old = credentials.metadata
    assert not credentials.is_replaced(old)
    written(file, OTHER)
    credentials.renew()
    assert credentials.metadata is old
    assert credentials.is_replaced(old)
    assert headers(credentials) == {"authorization": f"Bearer {OTHER}"}


def test_a_function_is_asked_for_another_key_when_its_last_one_was_refused() -> None:
    keys = [SECRET]
    calls = []

    def key() -> str:
        calls.append(1)
        return keys[-1]

    credentials = Credentials(Security(api_key=key))
    credentials.renew()
    assert len(calls) == 1
    old = credentials.metadata
    assert not credentials.is_replaced(old)
    keys.append(OTHER)
    assert credentials.is_replaced(old)
    assert headers(credentials) == {"authorization": f"Bearer {OTHER}"}


def test_certificates_are_one_generation(authority: Authority) -> None:
    """One that was half written does not count, until its key is there."""
    files, fresh = authority.files(), authority.files()
    credentials = Credentials(Security(ca=files.ca, cert=files.cert, key=files.key))
    assert not credentials.renew()
    os.replace(fresh.cert, files.cert)
    assert not credentials.renew()
    assert credentials.generation == 0
    os.replace(fresh.key, files.key)
    assert credentials.renew()
    assert credentials.generation == 1
    assert not credentials.renew()


@pytest.mark.parametrize("part", ["ca", "cert", "key"])
def test_a_wrong_file_is_named_when_the_client_is_made(
    authority: Authority, part: str, tmp_path: Path
) -> None:
    files = authority.files()
    for wrong in (tmp_path / "missing", written(tmp_path / "noise", "noise")):
        given = {**files._asdict(), part: str(wrong)}
        with pytest.raises(IllegalConfig, match=str(wrong)):
            ConnectionOptions("a:1", **given).connect()
