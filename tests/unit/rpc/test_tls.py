"""`broker.tls` and its files, before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.config import BrokerConfig
from mq.errors import IllegalConfig
from mq.rpc import tls
from tests.support.certificates import Authority, Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Authority(tmp_path).files()


def config(files: Files) -> BrokerConfig:
    return BrokerConfig(tls="required", tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)


def test_files_without_tls_are_not_read_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, connect = tls.from_config(BrokerConfig(tls_cert="nowhere", tls_key="nowhere"))
    assert server is None
    assert connect is tls.plain_channel
    assert "broker.tls is off" in caplog.text
    caplog.clear()
    tls.from_config(BrokerConfig())
    assert caplog.text == ""


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_required_tls_needs_a_certificate_and_its_key(files: Files, missing: str) -> None:
    with pytest.raises(IllegalConfig, match=r"broker\.tls_cert and broker\.tls_key: give both"):
        tls.from_config(config(files._replace(**{missing: ""})))


@pytest.mark.parametrize(
    ("part", "what"),
    [("cert", "certificate"), ("key", "key"), ("ca", "certificate authority")],
)
def test_a_file_that_cannot_be_used_is_named(files: Files, part: str, what: str) -> None:
    wrong: str = getattr(files, part)
    Path(wrong).write_text("not PEM")
    with pytest.raises(IllegalConfig, match=f"TLS {what} '{wrong}' holds no"):
        tls.from_config(config(files))
    Path(wrong).unlink()
    with pytest.raises(IllegalConfig, match=f"TLS {what} '{wrong}' cannot be read"):
        tls.from_config(config(files))


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, files: Files) -> None:
    other = Authority(tmp_path / "other").files()
    with pytest.raises(IllegalConfig, match="does not belong to the certificate"):
        tls.from_config(config(files._replace(key=other.key)))
