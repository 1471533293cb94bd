"""Which certificate may speak for which node."""

from __future__ import annotations

import pytest

from mq.raft.handshake import Expected, is_certified, objection
from mq.store.identity import Identity
from mq.wire.v1.raft_pb2 import Hello

N1 = Identity("mq", "set-0", "n1")


def dns(*names: str) -> list[tuple[str, str]]:
    return [("DNS", name) for name in names]


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (dns("n1"), "broker-1.example"),
        (dns("elsewhere", "n1"), "broker-1.example"),
        (dns("Broker-1.example"), "broker-1.EXAMPLE"),
        ([("IP Address", "10.0.0.1")], "10.0.0.1"),
        ([("IP Address", "0:0:0:0:0:0:0:1\n")], "::1"),
        ([("URI", "mq://mq/set-0/n1")], "broker-1.example"),
        ([("URI", "mq://mq/set-0/n0"), ("URI", "mq://mq/set-0/n1")], "broker-1.example"),
        ([("URI", "spiffe://example/x"), *dns("n1")], "broker-1.example"),
    ],
)
def test_a_certificate_speaks_for_the_nodes_that_it_names(
    names: list[tuple[str, str]], host: str
) -> None:
    assert is_certified(names, N1, host)


@pytest.mark.parametrize(
    "names",
    [
        [],
        dns("n2"),
        dns("N1"),
        dns("n1.example"),
        dns("*"),
        dns("*.example"),
        dns("broker-2.example"),
        [("IP Address", "10.0.0.2")],
        [("email", "n1")],
        [("URI", "n1")],
        [("URI", "mq://mq/set-0/n2")],
        [("URI", "mq://mq/set-1/n1")],
        [("URI", "mq://other/set-0/n1")],
        [("URI", "mq://mq/set-0/n1/more")],
        # It says for which node it is made: that it runs on the same host does not matter.
        [("URI", "mq://mq/set-0/n2"), *dns("broker-1.example", "n1")],
    ],
)
def test_a_certificate_speaks_for_no_other_node(names: list[tuple[str, str]]) -> None:
    assert not is_certified(names, N1, "broker-1.example")


def test_the_refusal_says_what_to_issue() -> None:
    hello = Hello(protocol_version=1, cluster="mq", broker_set="set-0", node_id="n1", peer_id="n2")
    expected = Expected(N1._replace(node="n2"), {"n1"}, None, 0, address="[::1]:9")
    assert objection(hello, expected) is None
    reason = objection(hello, expected._replace(certified=dns("n3", "n4")))
    assert reason is not None
    for part in ("made for n3, n4", "DNS name n1", "its address, ::1", "URI mq://mq/set-0/n1"):
        assert part in reason
