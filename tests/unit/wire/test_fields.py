"""Choosing fields of a message by hand, against protobuf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.wire.fields import fields, only
from mq.wire.v1.log_pb2 import Checkpoint, Member, Restoration, TopicQueues
from mq.wire.v1.state_pb2 import BrokerState, ProducerState

CHECKPOINTS = st.builds(
    Checkpoint,
    topics=st.lists(st.builds(TopicQueues, topic=st.text(max_size=3)), max_size=3),
    broker_state=st.binary(max_size=300),
    members=st.lists(st.builds(Member, node_id=st.text(max_size=3)), max_size=3),
    restorations=st.lists(
        st.builds(Restoration, raft_index=st.integers(0, 1 << 40), lineage=st.integers(0, 99)),
        max_size=2,
    ),
)


@given(CHECKPOINTS, st.sets(st.integers(1, 4)))
def test_the_fields_that_are_chosen_are_there_and_no_other(
    message: Checkpoint, numbers: set[int]
) -> None:
    wanted = Checkpoint()
    wanted.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.number not in numbers:
            wanted.ClearField(field.name)
    assert Checkpoint.FromString(only(message.SerializeToString(), numbers)) == wanted


def test_fields_of_every_kind_are_passed_over() -> None:
    restoration = Restoration(raft_index=1 << 60, lineage=7).SerializeToString()
    assert [one.number for one in fields(restoration)] == [1, 2]
    state = BrokerState(producers=[ProducerState(producer_id="p")], counts_stored_bytes=True)
    data = state.SerializeToString()
    assert BrokerState.FromString(only(data, [10])) == BrokerState(counts_stored_bytes=True)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_value_error_or_cover_all_of_them(data: bytes) -> None:
    try:
        found = list(fields(data))
    except ValueError:
        return
    assert [one.start for one in found] + [len(data)] == [0] + [one.end for one in found]


def test_a_message_that_is_cut_short_is_a_value_error() -> None:
    data = Checkpoint(broker_state=bytes(50)).SerializeToString()
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="cut short"):
            list(fields(data[:end]))
