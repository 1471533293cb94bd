"""The transport against programs of others: h2spec, and the interoperability client of gRPC."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import Authority, Files
from tests.support.foreign import programs
from tests.support.interop_service import InteropServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(900)  # the first run on a machine builds the programs

CASES = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
]


def specified(port: int) -> tuple[str, list[str]]:
    """The last line of h2spec, and the tests that failed."""
    h2spec = programs.installed("github.com/summerwind/h2spec/cmd/h2spec", "v2.2.1+incompatible")
    command = [str(h2spec), "-h", "127.0.0.1", "-p", str(port), "-o", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    output = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", done.stdout)
    *_, summary = output.strip().splitlines()
    print(summary)  # noqa: T201 - the figure is asked for
    return summary, sorted(set(re.findall(r"\u00d7 \d+: (.*)", output)))


def test_h2spec_finds_no_fault() -> None:
    with InteropServer(header_table_bytes=4_096) as server:
        summary, failed = specified(server.port)
    assert failed == []
    assert "145 tests, 145 passed" in summary


def test_without_a_table_of_headers_h2spec_misses_nothing_but_the_table() -> None:
    """Brokers announce that they have none. Two tests ask for a larger one all the same."""
    with InteropServer() as server:
        _, failed = specified(server.port)
    assert failed == [
        "Sends a dynamic table size update",
        "Sends multiple dynamic table size update",
    ]


@pytest.fixture(scope="module", params=["plain", "tls"])
def interop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """The command that runs a case against our server."""
    client = programs.installed("google.golang.org/grpc/interop/client", "v1.80.0")
    files = Files("", "", "")
    if request.param == "tls":
        files = Authority(tmp_path_factory.mktemp("tls")).files("localhost")
    with InteropServer(certificate=files.cert, key=files.key) as server:
        command = [str(client), "-server_host", "localhost", "-server_port", str(server.port)]
        if files.ca:
            command += ["-use_tls", "-use_test_ca", "-ca_file", files.ca]
            command += ["-server_host_override", "localhost"]
        yield command


@pytest.mark.parametrize("case", CASES)
def test_an_interop_case_of_grpc_passes(interop: list[str], case: str) -> None:
    done = subprocess.run(
        [*interop, "-test_case", case], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
