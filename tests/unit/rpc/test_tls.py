"""`broker.tls` and its files, before anything is opened."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
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
    found = tls.from_config(BrokerConfig(tls_cert="nowhere", tls_key="nowhere"))
    assert (found.main, found.external, found.certificates) == (None, None, None)
    assert found.connect is tls.BrokerChannel
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"tls": "optional", "tls_clients": "required"},
            "broker.tls_clients is required, but broker.tls is optional",
        ),
        ({"tls": "off", "tls_clients": "optional"}, "broker.tls is off: set it to required"),
        ({"tls_clients": "required", "tls_ca": ""}, "needs broker.tls_ca"),
        ({"tls": "optional", "transport": "grpcio"}, 'broker.transport = "mq"'),
        (
            {"tls_clients": "optional", "transport": "grpcio"},
            "broker.tls_clients is optional, which gRPC's own server cannot do",
        ),
        (
            {"external_listen": "a:1", "external_tls": "optional", "transport": "grpcio"},
            "broker.external_tls is optional",
        ),
        (
            {"external_listen": "a:1", "external_tls_clients": "required", "tls_ca": ""},
            "broker.external_tls_clients is required, and needs broker.tls_ca",
        ),
        (
            {"tls": "off", "tls_key": "", "external_listen": "a:1", "external_tls": "required"},
            "broker.external_tls is required, and needs broker.tls_cert and broker.tls_key",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_name(
    files: Files, options: dict[str, str], text: str
) -> None:
    with pytest.raises(IllegalConfig) as raised:
        tls.from_config(msgspec.structs.replace(config(files), **options))
    assert text in str(raised.value)


def test_a_second_listener_is_as_the_first_unless_it_is_said(files: Files) -> None:
    first = msgspec.structs.replace(config(files), tls_clients="required")
    assert tls.from_config(first).external is None
    same = tls.from_config(msgspec.structs.replace(first, external_listen="a:1"))
    assert same.external is not None
    assert same.external.is_required
    assert same.external.context().verify_mode is ssl.CERT_REQUIRED
    other = msgspec.structs.replace(
        first, external_listen="a:1", external_tls="optional", external_tls_clients="no"
    )
    found = tls.from_config(other)
    assert found.main is not None
    assert found.external is not None
    assert (found.main.is_required, found.external.is_required) == (True, False)
    assert found.main.context().verify_mode is ssl.CERT_REQUIRED
    assert found.external.context().verify_mode is ssl.CERT_NONE
    off = tls.from_config(msgspec.structs.replace(other, external_tls="off"))
    assert (off.main is None, off.external) == (False, None)


def test_metrics_use_the_files_of_the_broker_with_or_without_tls_for_clients(files: Files) -> None:
    found = tls.from_config(msgspec.structs.replace(config(files), tls="off"), "on")
    assert found.main is None
    assert found.metrics is not None
    assert found.metrics.context().verify_mode is ssl.CERT_NONE
    assert found.connect is tls.BrokerChannel
    with pytest.raises(IllegalConfig, match=r"metrics\.tls is on, and needs broker\.tls_cert"):
        tls.from_config(BrokerConfig(), "on")


def test_versions_before_tls_1_2_are_not_spoken(files: Files) -> None:
    main = tls.from_config(config(files)).main
    assert main is not None
    assert main.context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_certificate_for_servers_only_is_not_shown_to_other_brokers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that asks for certificates, required or not, would refuse it."""
    for_servers = Authority(tmp_path).files(is_for_clients=False)
    tls.from_config(config(for_servers))
    assert caplog.text == ""
    tls.from_config(msgspec.structs.replace(config(for_servers), tls_clients="optional"))
    assert "its own is for servers only" in caplog.text
