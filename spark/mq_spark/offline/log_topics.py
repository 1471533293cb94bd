"""The topics of a log at its end, and the offsets from which on their messages count.

A topic that was dropped is gone with its messages, also when another one of that name came later;
dead letters that were sent again or purged are gone too. All of that is known by the state that
opens the last segment and by the commands that come after it, except for what became of dead
letters: commands of the whole log are read for those, and only on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from mq.names import DEAD_LETTER_PREFIX
from mq.store.format import Kind
from mq.store.scan import Walked, walk
from mq.wire.v1.log_pb2 import Checkpoint
from mq.wire.v1.state_pb2 import BrokerState, Command
from mq_spark.offline.log_files import Log, SegmentFile, open_log

_BATCH, _COMMAND = 0x0A, 0x12  # fields of a MessagesEntry

Queue = tuple[str, int]


class Visible(NamedTuple):
    """By topic, the log offset from which on messages are its own; by queue, the first queue offset
    that is left where some were taken away.
    """

    since: dict[str, int]
    starts: dict[Queue, int]


def topics_of(log: Log) -> dict[str, int]:
    """Those that exist in the end, each with the log offset at which it was created."""
    found: dict[str, int] = {}
    for segment in log.segments[-1:]:
        for walked in _committed(segment):
            if walked.header.kind == Kind.CHECKPOINT:
                state = Checkpoint.FromString(bytes(walked.payload)).broker_state
                found = {
                    one.topic.topic: one.created_at_log_offset
                    for one in BrokerState.FromString(state).topics
                }
                continue
            for command in _commands(walked):
                kind = command.WhichOneof("kind")
                if kind == "put_topic":
                    created_at = segment.log_offset + walked.position
                    found.setdefault(command.put_topic.topic, created_at)
                elif kind == "drop_topic":
                    found.pop(command.drop_topic.topic, None)
    return found


def visible(log: Log, topics: dict[str, int]) -> Visible:
    """The visible ranges of these topics of the log."""
    starts: dict[Queue, int] = {}
    if any(topic.startswith(DEAD_LETTER_PREFIX) for topic in topics):
        for segment in log.segments:
            for walked in _committed(segment):
                for command in _commands(walked):
                    for one in command.trim_queues.starts:
                        queue = one.topic, one.queue_id
                        starts[queue] = max(starts.get(queue, 0), one.queue_offset)
    return Visible(topics, starts)


def _committed(segment: SegmentFile) -> Iterator[Walked]:
    """As far as entries are intact."""
    with open_log(segment.path) as file:
        yield from walk(file, 0, segment.end)


def _commands(walked: Walked) -> Iterator[Command]:
    """Those of `many` one by one. What is none changes nothing, as in the broker."""
    match walked.header.kind:
        case Kind.COMMAND:
            data = bytes(walked.payload)
        case Kind.MESSAGES:
            data = _command_of(walked.payload)
        case _:
            return
    try:
        yield from _flat(Command.FromString(data))
    except DecodeError:
        return


def _flat(command: Command) -> Iterator[Command]:
    if command.WhichOneof("kind") == "many":
        for one in command.many.commands:
            yield from _flat(one)
    else:
        yield command


def _command_of(payload: memoryview) -> bytes:
    """The command behind the batches of an entry, which stay closed; empty when there is none."""
    position = 0
    while position < len(payload):
        tag, length, shift = payload[position], 0, 0
        while True:
            position += 1
            if position >= len(payload):
                return b""
            length |= (payload[position] & 0x7F) << shift
            shift += 7
            if payload[position] < 0x80:
                break
        position += 1
        if tag == _COMMAND:
            return bytes(payload[position : position + length])
        if tag != _BATCH:
            return b""
        position += length
    return b""
