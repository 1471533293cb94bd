"""TLS between nodes: both show a certificate; a peer without one of the right authority is
refused.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mq.errors import IllegalConfig
from mq.raft.tls import TlsContexts, explain, load
from tests.support import certificates
from tests.support.raft_peers import (
    DEADLINE_S,
    NOWHERE,
    Lines,
    append,
    dialed,
    pair,
    run,
    started,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


class Authority(certificates.Authority):
    def contexts(self, *names: str) -> TlsContexts:
        return load(*self.files(*names))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def foreign(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "foreign")


# -- connecting ------------------------------------------------------------------------------------


def test_nodes_of_one_authority_talk_with_large_bodies_too(loop: str, authority: Authority) -> None:
    bodies = [os.urandom(size) for size in (0, 10, 16_000, 8 << 20, 100_000)]

    async def scenario() -> None:
        async with pair(tls=authority.contexts()) as (a, b):
            for index, body in enumerate(bodies):
                a.transport.send("b", append(index, body))
                b.transport.send("a", append(index, body))
            await a.core.until_frames(5)
            await b.core.until_frames(5)
            for each in (a, b):
                assert [bytes(frame.body) for _, frame in each.core.frames] == bodies
            under = a.transport._established["b"]._transport
            assert under is not None
            assert under.get_extra_info("ssl_object").version() == "TLSv1.3"

    run(scenario(), loop)


def test_nothing_of_a_conversation_can_be_read_on_the_wire(loop: str, authority: Authority) -> None:
    secret = b"in nobody's business" * 10

    async def scenario() -> None:
        kept = bytearray()
        async with (
            started("a", tls=authority.contexts()) as a,
            started("b", tls=authority.contexts()) as b,
        ):

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there = await asyncio.open_connection("127.0.0.1", b.transport.port)

                async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                    while data := await source.read(65_536):
                        kept.extend(data)
                        target.write(data)
                    target.close()

                await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            async with server:
                b.transport.set_peers({"a": NOWHERE})
                port = server.sockets[0].getsockname()[1]
                a.transport.set_peers({"b": f"127.0.0.1:{port}"})
                await a.core.until_connected("b")
                a.transport.send("b", append(1, secret))
                await b.core.until_frames(1)
                a.transport.set_peers({})
                await b.core.until(lambda: b.core.count("disconnected") == 1)
        assert len(kept) > len(secret)
        assert secret not in kept
        assert b"set-0" not in kept

    run(scenario(), loop)


def test_a_peer_that_does_not_read_is_waited_for(loop: str, authority: Authority) -> None:
    async def scenario() -> None:
        async with pair(tls=authority.contexts(), send_buffer_bytes=1 << 20) as (a, b):
            body, sent, connection = os.urandom(100_000), 0, b.transport._established["a"]
            under = connection._transport
            assert under is not None
            under.pause_reading()
            while a.transport.has_room("b"):
                assert a.transport.send("b", append(sent, body))
                sent += 1
                await asyncio.sleep(0)
            assert a.core.count("writable") == 0
            assert a.transport._established["b"]._queue.byte_count < (1 << 20) + 101_000
            under.resume_reading()
            await b.core.until_frames(sent)
            await a.core.until(lambda: a.core.count("writable") == 1)
            assert b.core.indexes() == list(range(sent))
            assert all(frame.body == body for _, frame in b.core.frames)

    run(scenario(), loop)


def test_an_end_is_a_loss_for_the_other_side_and_it_is_dialed_again(
    loop: str, authority: Authority
) -> None:
    async def scenario() -> None:
        async with pair(tls=authority.contexts()) as (a, b):
            b.transport.set_peers({})
            await a.core.until(lambda: a.core.count("disconnected") == 1)
            assert (a.core.lost(), b.core.lost()) == ([True], [False])
            b.transport.set_peers({"a": NOWHERE})
            await a.core.until(lambda: a.core.count("connected") == 2)

    run(scenario(), loop)


def test_a_refusal_arrives_through_tls(loop: str, authority: Authority, lines: Lines) -> None:
    async def scenario() -> None:
        tls = authority.contexts()
        async with started("a", tls=tls) as a, started("b", tls=tls) as b:
            a.transport.set_peers({"b": b.address})
            line = await lines.until("peer not reached")
            assert "refused by the other side: node a is not a member" in line["reason"]

    run(scenario(), loop)


# -- not connecting --------------------------------------------------------------------------------


def check_out(
    dialing: TlsContexts | None, accepting: TlsContexts | None, loop: str, lines: Lines
) -> tuple[str, str]:
    """Two nodes that must not come together: what each of them says about it."""

    async def scenario() -> None:
        async with (
            started("a", tls=dialing) as a,
            started("b", tls=accepting, handshake_timeout_ms=500) as b,
        ):
            b.transport.set_peers({"a": NOWHERE})
            a.transport.set_peers({"b": b.address})
            await lines.until("peer not reached")
            await lines.until("connection not accepted")
            assert a.core.events == b.core.events == []
            assert lines.of("connection not accepted")[0]["address"].startswith("127.0.0.1:")

    run(scenario(), loop)
    return lines.reasons("peer not reached")[0], lines.reasons("connection not accepted")[0]


def test_a_plaintext_node_learns_that_tls_is_needed(
    loop: str, authority: Authority, lines: Lines
) -> None:
    dialing, accepting = check_out(None, authority.contexts(), loop, lines)
    assert "refused by the other side: node b accepts TLS only" in dialing
    assert "accepts TLS only, and the other side opens none" in accepting


def test_a_plain_node_says_that_the_other_one_opens_tls(
    loop: str, authority: Authority, lines: Lines
) -> None:
    dialing, accepting = check_out(authority.contexts(), None, loop, lines)
    assert "it does not speak TLS" in dialing
    assert "it opens TLS, which this node is not configured for" in accepting


def test_a_certificate_of_another_authority_is_not_accepted(
    loop: str, authority: Authority, foreign: Authority, lines: Lines
) -> None:
    dialing, _ = check_out(authority.contexts(), foreign.contexts(), loop, lines)
    assert "its TLS certificate is not accepted" in dialing


def test_a_certificate_for_another_host_is_not_accepted(
    loop: str, authority: Authority, lines: Lines
) -> None:
    elsewhere = authority.contexts("elsewhere.example", "10.0.0.1")
    dialing, _ = check_out(authority.contexts(), elsewhere, loop, lines)
    assert "not valid for '127.0.0.1'" in dialing


def test_a_node_without_a_certificate_is_not_accepted(
    loop: str, authority: Authority, lines: Lines
) -> None:
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.load_verify_locations(authority.files().ca)
    contexts = authority.contexts()
    _, accepting = check_out(contexts._replace(client=nameless), contexts, loop, lines)
    assert "it shows no TLS certificate" in accepting


def test_a_dialing_node_with_a_foreign_certificate_is_not_accepted(
    loop: str, authority: Authority, foreign: Authority, lines: Lines
) -> None:
    """It trusts us; we do not trust it."""
    theirs, ours = foreign.files(), authority.files()
    client = load(theirs.cert, theirs.key, ours.ca).client
    contexts = authority.contexts()
    _, accepting = check_out(contexts._replace(client=client), contexts, loop, lines)
    assert "its TLS certificate is not accepted" in accepting


def test_old_versions_of_tls_are_not_spoken(loop: str, authority: Authority, lines: Lines) -> None:
    old = authority.contexts()
    old.client.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.client.maximum_version = ssl.TLSVersion.TLSv1_1
    old.client.set_ciphers("ALL:@SECLEVEL=0")
    check_out(old, authority.contexts(), loop, lines)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01garbage", b"\0"])
def test_garbage_and_silence_do_no_harm(
    loop: str, data: bytes, authority: Authority, lines: Lines
) -> None:
    async def scenario() -> None:
        tls = authority.contexts()
        async with (
            started("b", tls=tls, handshake_timeout_ms=300) as b,
            dialed(b.address) as raw,
            dialed(b.address) as gone,
        ):
            gone.writer.transport.abort()
            raw.send(data)
            await raw.read_to_end()
            await lines.until("connection not accepted")
            async with started("a", tls=tls) as a:
                b.transport.set_peers({"a": NOWHERE})
                a.transport.set_peers({"b": b.address})
                await a.core.until_connected("b")
                b.transport._established["a"].close("this test")
                await a.core.until(lambda: a.core.count("connected") == 2)
            await until(lambda: not b.transport._handshakes)

    run(scenario(), loop)


def test_stopping_in_the_middle_of_handshakes_leaves_nothing_behind(
    loop: str, authority: Authority
) -> None:
    """A client hello and then nothing, and one that has not even that."""
    hello = ssl.MemoryBIO()
    client = authority.contexts().client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="b")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    opening = hello.read()

    async def scenario() -> None:
        async with started("b", tls=authority.contexts()) as b:
            async with dialed(b.address) as half, dialed(b.address) as silent:
                half.send(opening)
                assert await half.reader.read(1) == b"\x16"
                await until(lambda: len(b.transport._handshakes) == 2)
                await b.transport.close()
                await half.read_to_end()
                await silent.read_to_end()
            assert b.transport._tasks == set()
            async with asyncio.timeout(DEADLINE_S):
                await b.transport.close()

    run(scenario(), loop)


# -- who a certificate speaks for ------------------------------------------------------------------


def test_a_node_with_a_certificate_of_another_node_is_not_accepted(
    loop: str, authority: Authority, lines: Lines
) -> None:
    """Its authority is the right one."""
    dialing, accepting = check_out(
        authority.contexts("c", "c.example"), authority.contexts(), loop, lines
    )
    assert "refused by the other side: the TLS certificate of node a is made for c" in dialing
    assert "it may not speak for a" in accepting


def test_a_node_that_answers_with_a_certificate_of_another_node_is_not_accepted(
    loop: str, authority: Authority, lines: Lines
) -> None:
    """On the host of the right one."""
    other = authority.contexts("127.0.0.1", "mq://mq/set-0/c")

    async def scenario() -> None:
        async with started("a", tls=authority.contexts()) as a, started("b", tls=other) as b:
            b.transport.set_peers({"a": NOWHERE})
            a.transport.set_peers({"b": b.address})
            line = await lines.until("peer not reached")
            assert "it may not speak for b" in line["reason"]
            assert a.core.events == []

    run(scenario(), loop)


@pytest.mark.parametrize(
    ("dialing", "accepting"),
    [
        (["a"], ["127.0.0.1", "b"]),
        (["mq://mq/set-0/a"], ["127.0.0.1", "mq://mq/set-0/b"]),
    ],
    ids=["ids", "uris"],
)
def test_nodes_with_certificates_of_their_own_talk(
    loop: str, dialing: list[str], accepting: list[str], authority: Authority
) -> None:
    async def scenario() -> None:
        async with (
            started("a", tls=authority.contexts(*dialing)) as a,
            started("b", tls=authority.contexts(*accepting)) as b,
        ):
            b.transport.set_peers({"a": "elsewhere.example:1"})
            a.transport.set_peers({"b": b.address})
            await a.core.until_connected("b")
            await b.core.until_connected("a")

    run(scenario(), loop)


def test_a_new_certificate_is_shown_at_the_next_connection(
    loop: str, authority: Authority, foreign: Authority
) -> None:
    async def scenario() -> None:
        contexts = authority.contexts("127.0.0.1", "first.example")
        async with pair(tls=lambda: contexts) as (a, b):
            contexts = foreign.contexts("127.0.0.1", "second.example")
            before = a.transport._established["b"]
            assert ("DNS", "first.example") in before.certified
            before.close("this test")
            for each in (a, b):
                await each.core.until(lambda each=each: each.core.count("connected") == 2)  # type: ignore[misc]
                (connection,) = each.transport._established.values()
                assert ("DNS", "second.example") in connection.certified

    run(scenario(), loop)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", certificates.Files._fields)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.unlink(), id="missing"),
        pytest.param(lambda path: path.write_text("no PEM"), id="nonsense"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
    ],
)
def test_a_file_of_no_use_is_named(
    part: str, spoil: Callable[[Path], object], authority: Authority
) -> None:
    files = authority.files()
    spoil(Path(getattr(files, part)))
    with pytest.raises(IllegalConfig) as caught:
        load(*files)
    assert repr(getattr(files, part)) in str(caught.value)


def test_a_directory_is_no_file(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(IllegalConfig, match=r"certificate authority .* cannot be read"):
        load(*authority.files()._replace(ca=str(tmp_path)))


def test_a_key_of_another_certificate_is_named_with_both(authority: Authority) -> None:
    ours, other = authority.files(), authority.files()
    with pytest.raises(IllegalConfig, match="does not belong to the certificate") as caught:
        load(ours.cert, other.key, ours.ca)
    assert other.key in str(caught.value)
    assert ours.cert in str(caught.value)


def test_an_encrypted_key_is_refused_instead_of_asked_for(authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    files = authority.files()
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    Path(files.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(IllegalConfig, match="is encrypted: store it without a password"):
        load(*files)


def test_contexts_ask_both_sides_for_certificates(authority: Authority) -> None:
    contexts = authority.contexts()
    for context in contexts:
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        # Only the given authority is trusted.
        assert len(context.get_ca_certs()) == 1
    assert contexts.client.check_hostname


def test_unknown_openssl_errors_are_passed_on() -> None:
    assert "something new" in explain(ssl.SSLError(1, "something new"))
    assert "something new" in explain(ssl.SSLCertVerificationError(1, "something new"))
