"""`mq certs dev`: an authority that stays, certificates that are renewed, keys that are private."""

from __future__ import annotations

import json
import ssl
import stat
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from mq import tls
from mq.cli.certs import certs
from mq.errors import IllegalConfig

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str) -> Result:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(certs, ["dev", *arguments])
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def contents(directory: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in directory.iterdir()}


def names_shown(directory: Path, host: str, client: str = "") -> tuple[list[str], list[str]]:
    """A handshake in memory: the names of the server's certificate and of the client's."""
    ca = str(directory / "ca.pem")
    files = tls.Files(str(directory / "server.pem"), str(directory / "server.key"), ca)
    asks = "required" if client else "no"
    trusting = ssl.create_default_context(cafile=ca)
    if client:
        trusting.load_cert_chain(directory / f"{client}.pem", directory / f"{client}.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.server_context(files, asks).wrap_bio(to_server, to_client, server_side=True)
    dialing = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [dialing, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return [name for _, name in tls.names_of(dialing)], [name for _, name in tls.names_of(server)]


def test_the_certificate_of_brokers_is_for_this_machine_its_nodes_and_what_was_asked_for(
    directory: Path,
) -> None:
    run(str(directory), "--host", "a1,a2", "--host", "10.0.0.1")
    for host in ("localhost", "127.0.0.1", "::1", "n0", "node-0", "a1", "10.0.0.1"):
        shown, _ = names_shown(directory, host)
        assert {"localhost", "n2", "a2"} <= {*shown}
    with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
        names_shown(directory, "elsewhere")


@pytest.mark.parametrize(
    ("name", "file"), [("alice", "client-alice"), ("mq://co/orders", "client-mq-co-orders")]
)
def test_a_client_gets_a_certificate_of_its_name(directory: Path, name: str, file: str) -> None:
    result = run(str(directory), "--client", name)
    assert names_shown(directory, "localhost", file)[1] == [name]
    assert f"--cert {directory}/{file}.pem" in result.output


def test_the_certificate_of_a_client_is_none_for_servers(directory: Path) -> None:
    run(str(directory), "--client", "localhost")
    (directory / "client-localhost.pem").rename(directory / "server.pem")
    (directory / "client-localhost.key").rename(directory / "server.key")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        names_shown(directory, "localhost")


def test_brokers_may_show_their_certificate_to_each_other(directory: Path) -> None:
    run(str(directory))
    assert "n0" in names_shown(directory, "localhost", "server")[1]


def test_keys_are_readable_by_their_owner_alone(directory: Path) -> None:
    run(str(directory), "--client", "alice")
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in directory.iterdir()}
    assert sorted(modes) == [
        f"{file}.{kind}" for file in ("ca", "client-alice", "server") for kind in ("key", "pem")
    ]
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}


def test_another_run_renews_all_but_the_authority(directory: Path) -> None:
    run(str(directory), "--host", "a1", "--client", "alice")
    before = contents(directory)
    result = run(str(directory), "--days", "2")
    after = contents(directory)
    assert {name for name, content in after.items() if before[name] == content} == {
        "ca.pem",
        "ca.key",
    }
    # It keeps the names that it was asked for once.
    assert "a1" in names_shown(directory, "localhost")[0]
    assert names_shown(directory, "a1", "client-alice")[1] == ["alice"]
    assert "(as it was)" in result.output


def test_a_client_is_added_without_touching_others(directory: Path) -> None:
    run(str(directory), "--client", "alice")
    before = contents(directory)
    run(str(directory), "--client", "bob")
    after = contents(directory)
    assert after.keys() - before.keys() == {"client-bob.pem", "client-bob.key"}
    assert before.items() <= after.items()


def test_an_authority_is_replaced_only_by_force_and_with_all_that_it_signed(
    directory: Path,
) -> None:
    run(str(directory), "--client", "alice")
    before = contents(directory)
    run(str(directory), "--force")
    after = contents(directory)
    assert before.keys() == after.keys()
    assert not [name for name in before if before[name] == after[name]]
    assert names_shown(directory, "localhost", "client-alice")[1] == ["alice"]


@pytest.mark.parametrize("file", ["ca.pem", "ca.key"])
def test_an_authority_that_cannot_be_used_is_not_replaced_silently(
    directory: Path, file: str
) -> None:
    run(str(directory))
    (directory / file).unlink()
    before = contents(directory)
    with pytest.raises(IllegalConfig, match="--force"):
        run(str(directory))
    assert contents(directory) == before


@pytest.mark.parametrize("name", ["", "*.example", "a b", "-x", "x" * 300, "ü"])
def test_a_name_that_cannot_stand_in_a_certificate_makes_nothing(
    directory: Path, name: str
) -> None:
    with pytest.raises(IllegalConfig, match="cannot stand in a certificate"):
        run(str(directory), "--client", name)
    assert not directory.exists()


def test_what_it_prints_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("certs", "--client", "alice", "--host", ",".join(f"host-{n}" for n in range(20)))
    assert max(map(len, result.output.splitlines())) <= 80
    assert "--broker-tls-cert certs/server.pem" in result.output


def test_json_names_the_files(directory: Path) -> None:
    found = json.loads(run(str(directory), "--client", "alice", "--json").output)
    assert found["authority"] == {"cert": f"{directory}/ca.pem", "is_new": True}
    _, client = found["certificates"]
    assert (client["names"], client["key"]) == (["alice"], f"{directory}/client-alice.key")
