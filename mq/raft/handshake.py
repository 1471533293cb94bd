"""The handshake of two nodes: its Hello, and the reasons to refuse it. Pure decisions, no sockets.

The node with the smaller id dials and says Hello first; the other answers with its own Hello, or
with a Refusal. So a node that is refused was never connected in its own eyes, and does not tell
its core of a peer that comes and goes at every dial.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mq.raft.frames import Frame
from mq.store.identity import Identity
from mq.wire.v1.log_pb2 import Restoration
from mq.wire.v1.raft_pb2 import Hello, RaftFrame, Refusal

PROTOCOL_VERSION = 1
# A reason quotes a stranger: at this length it fits a greeting frame in any script.
_REASON_CHARS_MAX = 900


class Restored(NamedTuple):
    """From this entry on a log is not the one that the backup was taken of."""

    raft_index: int
    lineage: int


class Past(NamedTuple):
    """The end of a log, and the places where it was restored from a backup."""

    last_index: int = 0
    restorations: tuple[Restored, ...] = ()

    def contradicts(self, other: Past) -> bool:
        """One has entries where the other was restored, and not the same ones. A log that ends
        before is copied from there on, as any.
        """
        return any(
            restored.raft_index <= b.last_index and restored not in b.restorations
            for a, b in ((self, other), (other, self))
            for restored in a.restorations
        )


class Expected(NamedTuple):
    """The facts that the Hello of another node is compared with."""

    identity: Identity
    peers: Collection[str]
    # The peer that was dialed; None: the other side dialed.
    dialed: str | None
    genesis_crc: int
    past: Past = Past()
    # Kinds and names of the other side's certificate; None: without TLS.
    certified: Sequence[tuple[str, str]] | None = None
    # Of the member that the other side says it is, "host:port".
    address: str = ""


class Presence(NamedTuple):
    """The addresses and the zone of a node, for clients of the others."""

    client_address: str = ""
    zone: str = ""
    external_address: str = ""


ABSENT = Presence()


def greeting(
    identity: Identity,
    peer_id: str,
    genesis_crc: int,
    presence: Presence = ABSENT,
    past: Past = Past(),  # noqa: B008 - it cannot be changed
) -> Frame:
    hello = Hello(
        protocol_version=PROTOCOL_VERSION,
        cluster=identity.cluster,
        broker_set=identity.broker_set,
        node_id=identity.node,
        peer_id=peer_id,
        birth_crc=genesis_crc,
        client_address=presence.client_address,
        zone=presence.zone,
        external_address=presence.external_address,
        last_index=past.last_index,
        restorations=[Restoration(**each._asdict()) for each in past.restorations],
    )
    return Frame(RaftFrame(hello=hello))


def refusal(reason: str) -> Frame:
    return Frame(RaftFrame(refusal=Refusal(reason=printable(reason))))


def objection(hello: Hello, expected: Expected) -> str | None:
    """Why this is not a peer to talk to, with both sides' values and what to do; None: it is one.

    Written for the logs of both nodes: names them instead of saying "this one".
    """
    us, them = expected.identity, quoted(hello.node_id)
    if hello.protocol_version != PROTOCOL_VERSION:
        return (
            f"node {us.node} speaks version {PROTOCOL_VERSION} of the protocol between nodes, "
            f"node {them} version {hello.protocol_version}: run the same release on both"
        )
    if hello.cluster != us.cluster:
        return (
            f"node {us.node} belongs to cluster {us.cluster}, node {them} to "
            f"{quoted(hello.cluster)}: correct the name of the cluster or the peer's address"
        )
    if hello.broker_set != us.broker_set:
        return (
            f"node {us.node} belongs to broker set {us.broker_set}, node {them} to "
            f"{quoted(hello.broker_set)}: correct the name of the set or the peer's address"
        )
    return (
        _wrong_node(hello, expected)
        or _wrong_certificate(hello, expected)
        or _wrong_genesis(hello, expected)
        or _wrong_past(hello, expected)
    )


def _wrong_node(hello: Hello, expected: Expected) -> str | None:
    us, them = expected.identity, quoted(hello.node_id)
    if hello.node_id == us.node:
        return f"two nodes are called {us.node}: give each node of a broker set a name of its own"
    if hello.peer_id != us.node:
        return (
            f"node {them} wants to talk to {quoted(hello.peer_id)}, but this is node {us.node}: "
            f"correct the address of {quoted(hello.peer_id)}"
        )
    if expected.dialed is not None and hello.node_id != expected.dialed:
        return (
            f"node {us.node} dialed {expected.dialed}, but node {them} answered: "
            f"correct the address of {expected.dialed}"
        )
    if hello.node_id not in expected.peers:
        known = ", ".join(sorted(expected.peers)) or "no other"
        return (
            f"node {them} is not a member of broker set {us.broker_set}: node {us.node} knows "
            f"{known}; add it as a member, or stop it"
        )
    if expected.dialed is None and hello.node_id > us.node:
        return (
            f"node {them} dialed node {us.node}, but of two nodes the one with the smaller id "
            f"dials, which is {us.node}: run the same release on both"
        )
    return None


def _wrong_certificate(hello: Hello, expected: Expected) -> str | None:
    names = expected.certified
    host = expected.address.rpartition(":")[0].strip("[]")
    claimed = expected.identity._replace(node=hello.node_id)
    if names is None or is_certified(names, claimed, host):
        return None
    them, shown = quoted(hello.node_id), quoted(", ".join(name for _, name in names))
    return (
        f"the TLS certificate of node {them} is made for {shown}, so that it may not speak for "
        f"{them}: issue one for the DNS name {them}, for the host of its address, "
        f"{quoted(host)}, or for the URI {node_uri(claimed)}"
    )


def node_uri(identity: Identity) -> str:
    """Names a node in a certificate."""
    return f"mq://{identity.cluster}/{identity.broker_set}/{identity.node}"


def is_certified(names: Sequence[tuple[str, str]], claimed: Identity, host: str) -> bool:
    """Whether a certificate with these names may speak for this node, which is a member at `host`.

    By its URI; if it has no URI of a node, by the node's id or its host. Exactly: a wildcard names
    no node.
    """
    nodes = [name for kind, name in names if kind == "URI" and name.startswith("mq://")]
    if nodes:
        return node_uri(claimed) in nodes
    for kind, name in names:
        if kind == "DNS" and (name == claimed.node or name.lower() == host.lower()):
            return True
        if kind == "IP Address" and _is_same_ip(name, host):
            return True
    return False


def _is_same_ip(name: str, host: str) -> bool:
    """IPv6 has many spellings."""
    try:
        return ipaddress.ip_address(name.strip()) == ipaddress.ip_address(host)
    except ValueError:
        return False


def _wrong_genesis(hello: Hello, expected: Expected) -> str | None:
    # Zero: that node's log does not reach back to its first entry, so there is nothing to compare.
    checksums = hello.birth_crc, expected.genesis_crc
    if not all(checksums) or checksums[0] == checksums[1]:
        return None
    return (
        f"node {quoted(hello.node_id)} was started with other members than node "
        f"{expected.identity.node}: their first entries have the checksums {checksums[0]:08x} and "
        f"{checksums[1]:08x}; give the one that is wrong an empty data directory and the right "
        "members"
    )


def _wrong_past(hello: Hello, expected: Expected) -> str | None:
    """Without this, a node that was restored next to old ones would lead them, being in a later
    term, and they would throw away what was stored after the backup.
    """
    restorations = tuple(Restored(one.raft_index, one.lineage) for one in hello.restorations)
    ours, theirs = expected.past, Past(hello.last_index, restorations)
    if not ours.contradicts(theirs):
        return None
    us, them = expected.identity.node, quoted(hello.node_id)
    return (
        f"node {us} {_origin(ours)}, node {them} {_origin(theirs)}: they are of different sets. "
        "Stop the one that does not belong here; to replace a node of a set that runs, give it an "
        "empty directory and raft.join, not a backup"
    )


def _origin(past: Past) -> str:
    if not past.restorations:
        return f"has a log of {past.last_index} entries that was never restored"
    index, lineage = past.restorations[-1]
    return f"was restored from a backup at entry {index} (as {lineage:016x})"


def quoted(text: str) -> str:
    """A stranger's word, short enough for a sentence."""
    legible = printable(text)
    return legible if 0 < len(legible) <= 127 else repr(legible[:127])


def printable(text: str) -> str:
    """A stranger's words, so that they can neither flood nor forge a log."""
    return "".join(each if each.isprintable() else "?" for each in text[:_REASON_CHARS_MAX])
