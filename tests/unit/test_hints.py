"""Hints can be pasted as they stand."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mq import hints
from mq.config import BrokerConfig


def test_the_default_address_needs_no_variable() -> None:
    text = hints.first_steps("127.0.0.1:8081", "mq")
    assert "Clients connect to 127.0.0.1:8081." in text
    assert "export" not in text
    assert "\n  mq produce greetings hello\n" in text


def test_any_other_address_comes_with_the_variable() -> None:
    text = hints.first_steps("127.0.0.1:1,127.0.0.1:2", ".venv/bin/mq")
    assert "\n  export MQ_SERVER=127.0.0.1:1,127.0.0.1:2\n" in text
    assert "\n  .venv/bin/mq consume greetings" in text


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"tls": "off", "tls_ca": "ca.pem"}, ""),
        ({"tls": "required"}, "\n  export MQ_TLS=yes\n"),
        ({"tls": "required", "tls_ca": "/a b/ca.pem"}, "\n  export MQ_CA='/a b/ca.pem'\n"),
    ],
)
def test_a_broker_with_tls_says_how_to_connect_to_it(given: dict[str, Any], line: str) -> None:
    variables = hints.security_variables(BrokerConfig(**given))
    text = hints.first_steps("127.0.0.1:8081", "mq", variables)
    assert line in text
    assert ("export" in text) == bool(line)


def test_the_program_is_called_as_the_shell_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "found")
    assert hints.program() == "mq"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(binaries / "python"))
    assert hints.program() == "mq"
    (binaries / "mq").touch()
    monkeypatch.chdir(tmp_path)
    assert hints.program() == ".venv/bin/mq"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert hints.program() == str(binaries / "mq")
