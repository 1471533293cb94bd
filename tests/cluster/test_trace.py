"""The trace of a message is the same on every replica, over fail-overs, and by each broker set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mq.client import Admin, Consumer, Message, Producer, SimpleConsumer
from mq.wire.v1 import admin_pb2
from tests.support.broker_set import BrokerSet
from tests.support.waiting import poll

if TYPE_CHECKING:
    from pathlib import Path


def kinds(trace: Any) -> list[str]:
    return [
        admin_pb2.TraceKind.Name(one.kind).removeprefix("TRACE_").lower() for one in trace.events
    ]


def test_every_replica_tells_the_same_life_before_and_after_a_fail_over(tmp_path: Path) -> None:
    with BrokerSet(tmp_path) as brokers, Admin(brokers.servers) as admin:
        admin.create_topic("t", queues=1)
        with Producer(brokers.servers) as producer:
            sent = producer.send("t", Message(b"m", keys=["k"], delay_s=0.2))
            id_ = sent.message_id or ""
            with Consumer(brokers.servers, "g", "t", start="earliest") as consumer:
                poll(lambda: consumer.poll(timeout_s=1), "it was delivered")
            with SimpleConsumer(brokers.servers, "r", "t", start="earliest") as receiver:
                (first,) = receiver.receive(max_messages=1, wait_s=30)
                receiver.nack(first, delay_s=0.05, reason="not yet")
                poll(lambda: "passed" in kinds(admin.trace_message(id_)), "it was passed")
                before = admin.trace_message(id_)
                killed = brokers.kill_leader()
                brokers.leader(other_than=killed)
                (again,) = poll(
                    lambda: receiver.receive(max_messages=1, wait_s=5), "it comes again"
                )
                receiver.ack(again)
        brokers.start(killed)
        assert kinds(before) == ["born", "delayed", "delivered", "passed", "received", "nacked"]
        brokers.wait_same()

        def of_every_node() -> list[Any]:
            """By the same entries."""
            found = [
                admin.trace_message(id_, server=brokers.address(name)) for name in brokers.nodes
            ]
            return found if len({one.raft_index for one in found}) == 1 else []

        traces = poll(of_every_node, "all have applied the same")
        assert all(one == traces[0] for one in traces)
        trace = traces[0]
        assert trace.is_complete
        assert kinds(trace) == [*kinds(before), "received", "acknowledged"]
        assert list(trace.events[: len(before.events)]) == list(before.events)
        received = [one for one in trace.events if one.group == "r"]
        assert {one.member_id for one in received} == {received[0].member_id}
        assert received[1].reason == "not yet"
        # The leader of another term says who it is again.
        assert len({one.term for one in received}) == 2
