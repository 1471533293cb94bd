"""AdminService: what waits for its time, what members have received, dead letters one by one, and
who is connected.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.message_pb2 import Message
from tests.conformance.calls import Calls, until
from tests.conformance.test_receive import handles, receive
from tests.conformance.test_retry import copies, give_up

if TYPE_CHECKING:
    from tests.conformance.conftest import Ends

INVALID = grpc.StatusCode.INVALID_ARGUMENT
HOUR_MS = 3_600_000
RESEND, PURGE = pb.LETTER_ACTION_RESEND, pb.LETTER_ACTION_PURGE


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- messages that wait ---------------------------------------------------------------------------


def waiting(calls: Calls, topic: str, **fields: Any) -> list[pb.ScheduledMessage]:
    """All pages."""
    found: list[pb.ScheduledMessage] = []
    page = ""
    while True:
        answer = calls("ListScheduled", topic=topic, page=page, **fields)
        found += answer.messages
        page = answer.next_page
        if not page:
            return found


def test_what_waits_is_listed_in_the_order_of_time_page_by_page(calls: Calls, topic: str) -> None:
    begin_ms = now_ms() + HOUR_MS
    delays = [7, 3, 3, 9, 0, 5]
    ids = {}
    for minutes in delays:
        message = Message(body=b"x" * minutes, tag="t", keys=[f"k{minutes}", "all"])
        answer = calls.send(
            topic,
            messages=[message, message],
            queue_id=1,
            deliver_at_ms=begin_ms + minutes * 60_000,
        )
        for one in answer.message_ids:
            ids[one] = minutes
    for size in (0, 1, 5, 1_000):
        found = waiting(calls, topic, messages_max=size)
        assert len(found) == len(ids) == 12
        assert [ids[one.message_id] for one in found] == sorted(ids.values())
        for one in found:
            minutes = ids[one.message_id]
            assert one.deliver_at_ms == begin_ms + minutes * 60_000
            assert (one.topic, one.queue_id, one.size_bytes) == (topic, 1, minutes)
            assert (one.tag, list(one.keys)) == ("t", [f"k{minutes}", "all"])
    later = waiting(calls, topic, begin_ms=begin_ms + 5 * 60_000)
    assert [ids[one.message_id] for one in later] == [5, 5, 7, 7, 9, 9]
    resumed = calls("ListScheduled", topic=topic, page=found[4].next_page)
    assert list(resumed.messages) == found[5:]
    assert not calls("ListScheduled", topic=topic, begin_ms=begin_ms + 100 * 24 * HOUR_MS).messages


def test_an_operator_takes_back_what_waits(calls: Calls, topic: str) -> None:
    for body in (b"a", b"b"):
        calls.send(topic, body, deliver_at_ms=now_ms() + HOUR_MS)
    first, second = waiting(calls, topic)
    wanted = {"message_id": first.message_id, "deliver_at_ms": first.deliver_at_ms}
    calls("RecallScheduled", topic=topic, **wanted)
    assert [one.message_id for one in waiting(calls, topic)] == [second.message_id]
    assert calls.refused("RecallScheduled", topic=topic, **wanted).code == "MESSAGE_NOT_FOUND"


def test_what_is_due_is_counted_by_time_and_topic(calls: Calls, topic: str) -> None:
    at_ms = now_ms() + HOUR_MS
    for minutes in (0, 1, 2, 600, 1_200):
        calls.send(topic, b"a", b"b", deliver_at_ms=at_ms + minutes * 60_000)
    for most in (0, 2, 10, 500):
        counts = calls("CountScheduled", buckets_max=most)
        assert {one.topic: one.messages for one in counts.topics}[topic] == 10
        assert 0 < len(counts.buckets) <= (most or 60)
        begins = [one.begin_ms for one in counts.buckets]
        assert begins == sorted(begins)
        assert all(one % counts.bucket_ms == 0 for one in begins)
        total = sum(one.count for one in counts.buckets)
        assert total == counts.messages or counts.counts_batches


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("ListScheduled", {"messages_max": 1_001}),
        ("ListScheduled", {"begin_ms": -1}),
        ("ListScheduled", {"page": "x"}),
        ("ListScheduled", {"page": "1-2-3-4"}),
        ("ListScheduled", {"page": f"{10**20}-1-1"}),
        ("CountScheduled", {"buckets_max": 501}),
        ("ListLeases", {"group": "g", "leases_max": 1_001}),
        ("ListClients", {"clients_max": 1_001}),
        ("ListClients", {"page": "-1"}),
        ("RecallScheduled", {"topic": "t", "message_id": "set-0:1"}),
        ("RecallScheduled", {"topic": "t", "message_id": "no id", "deliver_at_ms": 1}),
        ("SettleDeadLetters", {"group": "g", "queue_offsets": [1]}),
        ("SettleDeadLetters", {"group": "g", "queue_offsets": [1], "action": 9}),
        ("SettleDeadLetters", {"group": "g", "action": RESEND}),
    ],
)
def test_bad_requests_of_operators_are_refused_by_name(
    calls: Calls, method: str, fields: dict[str, Any]
) -> None:
    refusal = calls.refused(method, **fields)
    assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_REQUEST", INVALID)


# -- leases ---------------------------------------------------------------------------------------


def test_leases_say_what_is_with_whom_until_when(calls: Calls, topic: str, group: str) -> None:
    assert calls.refused("ListLeases", group=group).code == "GROUP_NOT_FOUND"
    calls.send(topic, *[b"x"] * 10, queue_id=1)
    first = receive(calls, group, topic, member_id="m1", messages_max=6, invisible_ms=60_000)
    receive(calls, group, topic, member_id="m2", messages_max=2, invisible_ms=90_000)
    taken = handles(first)
    calls("Ack", group=group, handles=[taken[0], taken[3]])
    calls("Nack", group=group, handles=[taken[5]], delay_ms=500_000)
    answer = calls("ListLeases", group=group, topic=topic)
    rows = [(one.start, one.end, one.member_id, one.is_leased) for one in answer.leases]
    assert rows == [(1, 3, "m1", True), (4, 5, "m1", True), (5, 6, "", False), (6, 8, "m2", True)]
    assert (answer.leased, answer.waiting) == (5, 1)
    until_ms = [one.visible_at_ms - now_ms() for one in answer.leases]
    assert 0 < until_ms[0] <= 60_000 < until_ms[3] <= 90_000 < until_ms[2]
    assert {(one.topic, one.queue_id, one.attempts) for one in answer.leases} == {(topic, 1, 1)}
    pages, page = [], ""
    while True:
        part = calls("ListLeases", group=group, leases_max=1, page=page)
        assert (part.leased, part.waiting) == (5, 1)
        pages += part.leases
        page = part.next_page
        if not page:
            break
    assert pages == list(answer.leases)
    refusal = calls.refused("ListLeases", group=group, page="1/2")
    assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_REQUEST", INVALID)


# -- dead letters one by one ----------------------------------------------------------------------


def settle(
    calls: Calls, group: str, action: pb.LetterAction, *letters: int, **fields: Any
) -> list[tuple[int, str]]:
    outcomes = calls(
        "SettleDeadLetters", group=group, action=action, queue_offsets=letters, **fields
    ).outcomes
    for one in outcomes:
        assert bool(one.message_id) == (one.result == pb.LETTER_RESULT_RESENT)
    name = pb.LetterResult.Name
    return [(one.queue_offset, name(one.result).removeprefix("LETTER_RESULT_")) for one in outcomes]


def test_each_letter_that_is_sent_again_has_its_outcome(
    calls: Calls, topic: str, group: str
) -> None:
    calls.send(topic, *[f"{at}".encode() for at in range(5)])
    give_up(calls, group, topic, 5)
    assert settle(calls, group, RESEND, 3, 1, 9, 3) == [(1, "RESENT"), (3, "RESENT"), (9, "GONE")]
    own = f"%RETRY%{group}"
    assert [one.body for one in copies(calls, own)] == [b"1", b"3"]
    again = settle(calls, group, RESEND, 1, 2)
    assert again == [(1, "ALREADY_RESENT"), (2, "RESENT")]
    assert settle(calls, group, RESEND, 1, again=True) == [(1, "RESENT")]
    assert [one.body for one in copies(calls, own)] == [b"1", b"3", b"2", b"1"]
    listed = calls("ListDeadLetters", group=group)
    marked = {one.queue_offset for one in listed.messages if one.message_id in listed.resent_ids}
    assert (len(listed.messages), marked) == (5, {1, 2, 3})


def test_the_outcome_names_the_copy(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"a", b"b")
    give_up(calls, group, topic, 2)
    request = {"group": group, "queue_offsets": [0, 1], "action": RESEND}
    outcomes = calls("SettleDeadLetters", **request).outcomes
    found = [calls("GetMessage", message_id=one.message_id) for one in outcomes]
    assert [(one.topic, one.message.body) for one in found] == [
        (f"%RETRY%{group}", b"a"),
        (f"%RETRY%{group}", b"b"),
    ]


def test_letters_are_purged_one_by_one(calls: Calls, topic: str, group: str) -> None:
    def left() -> list[int]:
        return [one.queue_offset for one in calls("ListDeadLetters", group=group).messages]

    calls.send(topic, *[b"x"] * 6)
    give_up(calls, group, topic, 6)
    assert settle(calls, group, PURGE, 4, 2, 7) == [(2, "PURGED"), (4, "PURGED"), (7, "GONE")]
    assert left() == [0, 1, 3, 5]
    assert settle(calls, group, RESEND, 2, 3) == [(2, "GONE"), (3, "RESENT")]
    assert calls.refused("ResendDeadLetters", group=group, queue_offsets=[2]).code == (
        "MESSAGE_NOT_FOUND"
    )
    (count,) = [one for one in calls("ListDeadLetters").groups if one.group == group]
    assert count.messages == 4
    # The front goes for good, with what was purged behind it.
    assert settle(calls, group, PURGE, 0, 1) == [(0, "PURGED"), (1, "PURGED")]
    assert left() == [3, 5]
    assert calls("ListDeadLetters", group=group, messages_max=1).next_offset == 4
    assert calls("ResendDeadLetters", group=group).messages == 2
    assert not left()
    assert group not in {one.group for one in calls("ListDeadLetters").groups}


def test_a_group_without_letters_has_none_to_settle(calls: Calls, group: str) -> None:
    refusal = calls.refused("SettleDeadLetters", group=group, queue_offsets=[0], action=PURGE)
    assert refusal.code == "TOPIC_NOT_FOUND"


# -- clients --------------------------------------------------------------------------------------


@pytest.mark.every_client("its user agent tells its language")
def test_the_connections_of_a_node_are_listed(
    calls: Calls, subscribe: Any, topic: str, group: str, ends: Ends
) -> None:
    subscribe("m").assignment()
    answer = until(
        lambda: (
            found
            if (found := calls("ListClients", clients_max=1_000)).is_count_only
            or any(group in one.groups for one in found.clients)
            else None
        ),
        "the member is seen",
    )
    assert answer.connections >= 1
    if ends.transport == "grpcio":
        assert answer.is_count_only
        assert not answer.clients
        return
    (mine,) = [one for one in answer.clients if group in one.groups]
    assert mine.language == ends.client
    assert mine.version
    assert topic in mine.topics
    doing = {one.method: one.count for one in mine.in_flight}
    assert doing["ConsumerService/Subscribe"] >= 1
    assert doing["AdminService/ListClients"] >= 1
    assert mine.calls >= 3
    assert mine.is_encrypted == (ends.security == "tls")
    assert 0 <= now_ms() - mine.connected_at_ms < HOUR_MS
    seen, page = [], ""
    while True:
        part = calls("ListClients", clients_max=1, page=page)
        seen += [one.address for one in part.clients]
        page = part.next_page
        if not page:
            break
    assert seen == [one.address for one in answer.clients]
