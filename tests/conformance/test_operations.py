"""Members, leadership and the bytes of the log: what a broker alone in its set answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.store.format import HEADER_BYTES, Kind, decode_header, is_intact

if TYPE_CHECKING:
    from tests.conformance.calls import Calls


def test_a_node_alone_is_a_member_that_votes(calls: Calls) -> None:
    status = calls("BrokerStatus")
    assert [one.node_id for one in status.set_members] == [status.node_id]
    assert status.is_voter
    assert not status.HasField("joining")


@pytest.mark.parametrize(
    ("node_id", "address"),
    [
        *(("", "host:1"), ("a b", "host:1"), ("n\n", "host:1"), ("x" * 128, "host:1")),
        *(("n9", ""), ("n9", "host"), ("n9", "host:"), ("n9", "a b:1"), ("n9", "h:1,i:2")),
        *(("n9", "x" * 300 + ":1"), ("n9", "host:123456")),
    ],
)
def test_a_member_without_a_name_or_place_is_refused(
    calls: Calls, node_id: str, address: str
) -> None:
    refusal = calls.refused("AddMember", node_id=node_id, address=address)
    assert refusal.code == "ILLEGAL_REQUEST"
    assert not calls("BrokerStatus").HasField("joining")


def test_a_member_that_never_comes_is_called_off(calls: Calls) -> None:
    waiting = calls("AddMember", node_id="n9", address="127.0.0.1:1")
    assert (waiting.joining.node_id, waiting.joining.is_connected) == ("n9", False)
    # Asked again, it is looked at again; no other call comes in between.
    assert calls("AddMember", node_id="n9", address="127.0.0.1:1").joining.node_id == "n9"
    other = calls.refused("AddMember", node_id="n8", address="127.0.0.1:1")
    assert other.code == "ILLEGAL_MEMBERSHIP"
    assert len(waiting.members) == 1
    after = calls("RemoveMember", node_id="n9")
    assert not after.HasField("joining")
    assert calls.refused("RemoveMember", node_id="n9").code == "ILLEGAL_MEMBERSHIP"


def test_a_node_alone_stays_and_leads(calls: Calls) -> None:
    status = calls("BrokerStatus")
    assert calls.refused("RemoveMember", node_id=status.node_id).code == "ILLEGAL_MEMBERSHIP"
    assert calls.refused("RemoveMember", node_id="").code == "ILLEGAL_MEMBERSHIP"
    for node_id in ("", "n9"):
        refusal = calls.refused("TransferLeadership", node_id=node_id)
        assert refusal.code == "ILLEGAL_MEMBERSHIP"
    found = calls("TransferLeadership", node_id=status.node_id)
    assert (found.leader_id, found.term) == (status.node_id, status.term)


@pytest.mark.parametrize("bytes_max", [0, 7, 1000, 1 << 31])
def test_the_log_is_read_in_pieces_that_join(calls: Calls, topic: str, bytes_max: int) -> None:
    calls.send(topic, b"x" * 5000)
    status = calls("BrokerStatus")
    data, log_offset = b"", 0
    while True:
        chunk = calls("ReadLog", log_offset=log_offset, bytes_max=bytes_max)
        assert chunk.log_offset == log_offset
        assert chunk.next_offset == log_offset + len(chunk.data)
        assert not bytes_max or len(chunk.data) <= bytes_max
        if not chunk.data or len(data) > 3000:
            break
        data, log_offset = data + chunk.data, chunk.next_offset
    assert chunk.end_index >= status.applied_index
    assert chunk.end_offset >= log_offset
    header = decode_header(data)
    assert header is not None
    assert (header.kind, header.raft_index) == (Kind.CHECKPOINT, 1)
    assert is_intact(memoryview(data), header)
    assert decode_header(data, HEADER_BYTES + header.length) is not None


def test_behind_the_end_of_the_log_there_is_nothing(calls: Calls) -> None:
    chunk = calls("ReadLog", log_offset=(1 << 64) - 1)
    assert chunk.data == b""
    assert chunk.next_offset == (1 << 64) - 1
    assert 0 < chunk.end_offset < chunk.next_offset
