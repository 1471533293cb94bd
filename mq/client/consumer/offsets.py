"""Offsets of a group: those that the brokers have, and those that a broadcast consumer keeps.

Each broker set has the offsets of its own queues. Calls that name queues of several sets ask all of
them concurrently and merge the answers; an error names its set. Calls have no state, and no retries
of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mq.client.cluster.connection import Connection, SetConnection
from mq.client.cluster.errors import reworded
from mq.client.cluster.retry import CALL_TIMEOUT_S
from mq.client.consumer.options import Start, start_position
from mq.client.messages import QueueRef
from mq.errors import IllegalConfig, MqError
from mq.wire.v1 import consumer_pb2 as wire

log = logging.getLogger(__name__)

_KINDS = {
    wire.START_EARLIEST: wire.OFFSET_EARLIEST,
    wire.START_LATEST: wire.OFFSET_LATEST,
    wire.START_TIMESTAMP: wire.OFFSET_AT_TIME,
}

# A file has topic -> broker set -> queue id -> queue offset; version 1 has no broker sets.
_VERSION, _WITHOUT_SETS = 2, 1

T = TypeVar("T")


# Of several sets


async def find_offsets(
    connection: Connection, topic: str, to: Start, queues: Iterable[QueueRef] = ()
) -> dict[QueueRef, int]:
    """The offsets of these queues of the topic, or of all. Raises TopicNotFound."""
    parted = _by_set(queues)
    if not parted:
        parted = {name: [] for name in (await connection.topology.locate(topic)).sets}
    return await _merged(
        {
            name: find_in(connection.of(name), topic, to, [one.queue_id for one in refs])
            for name, refs in parted.items()
        }
    )


async def commit_offsets(
    connection: Connection, group: str, offsets: Mapping[QueueRef, int]
) -> None:
    """Durable in all sets when it returns; when it raises, perhaps in some."""
    await in_sets(
        {
            name: commit_in(connection.of(name), group, {ref: offsets[ref] for ref in refs})
            for name, refs in _by_set(offsets).items()
        }
    )


async def query_offsets(
    connection: Connection, group: str, queues: Iterable[QueueRef] = ()
) -> dict[QueueRef, int]:
    """The offsets of these queues, or all of the group; queues without one are left out."""
    parted = _by_set(queues)
    if not parted:
        parted = {one.name: [] for one in await connection.sets()}
    return await _merged(
        {name: query_in(connection.of(name), group, refs) for name, refs in parted.items()}
    )


def _by_set(refs: Iterable[QueueRef]) -> dict[str, list[QueueRef]]:
    parted: dict[str, list[QueueRef]] = {}
    for ref in refs:
        parted.setdefault(ref.broker_set, []).append(ref)
    return parted


async def _merged(
    work: Mapping[str, Coroutine[object, object, dict[QueueRef, int]]],
) -> dict[QueueRef, int]:
    found = await in_sets(work)
    return {ref: at for name in sorted(found) for ref, at in found[name].items()}


async def in_sets(work: Mapping[str, Coroutine[object, object, T]]) -> dict[str, T]:
    """The answers of all sets, which are asked concurrently. Raises the first error after all have
    ended; it names its set if there are several.
    """
    if len(work) == 1:
        ((name, only),) = work.items()
        return {name: await only}  # without a task of its own
    answers = await asyncio.gather(*work.values(), return_exceptions=True)
    found: dict[str, T] = {}
    for name, answer in zip(work, answers, strict=True):
        if isinstance(answer, MqError) and len(work) > 1:
            raise reworded(answer, f"broker set {name}: {answer}") from answer
        if isinstance(answer, BaseException):
            raise answer
        found[name] = answer
    return found


# Of one set


async def find_in(
    broker_set: SetConnection,
    topic: str,
    to: Start,
    queue_ids: Iterable[int] = (),
    timeout_s: float = CALL_TIMEOUT_S,
) -> dict[QueueRef, int]:
    """The offsets of these queues of the set, or of all that it has of the topic."""
    position, at_ms = start_position(to)
    request = wire.FindOffsetsRequest(
        topic=topic, queue_ids=queue_ids, kind=_KINDS[position], at_ms=at_ms
    )
    response: wire.FindOffsetsResponse = await broker_set.call(request, timeout_s)
    return from_positions(response.positions, broker_set.name)


async def commit_in(
    broker_set: SetConnection,
    group: str,
    offsets: Mapping[QueueRef, int],
    member_id: str = "",
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Durable when it returns; all of it or nothing."""
    request = wire.CommitOffsetsRequest(
        group=group, member_id=member_id, positions=to_positions(offsets)
    )
    await broker_set.call(request, timeout_s)


async def query_in(
    broker_set: SetConnection,
    group: str,
    queues: Iterable[QueueRef] = (),
    timeout_s: float = CALL_TIMEOUT_S,
) -> dict[QueueRef, int]:
    wanted = [wire.QueueId(topic=topic, queue_id=queue_id) for topic, queue_id, _ in queues]
    request = wire.QueryOffsetsRequest(group=group, queues=wanted)
    response: wire.QueryOffsetsResponse = await broker_set.call(request, timeout_s)
    return from_positions(response.positions, broker_set.name)


def position(ref: QueueRef, queue_offset: int, epoch: int = 0) -> wire.QueuePosition:
    return wire.QueuePosition(
        topic=ref.topic, queue_id=ref.queue_id, queue_offset=queue_offset, epoch=epoch
    )


def to_positions(offsets: Mapping[QueueRef, int]) -> list[wire.QueuePosition]:
    return [position(ref, queue_offset) for ref, queue_offset in offsets.items()]


def from_positions(positions: Iterable[wire.QueuePosition], broker_set: str) -> dict[QueueRef, int]:
    return {QueueRef(one.topic, one.queue_id, broker_set): one.queue_offset for one in positions}


class BroadcastOffsets:
    """The offsets of a broadcast consumer: in memory, or in a file of its own, which no other
    consumer may use.

    The file is a small JSON object and is replaced as a whole: a crash leaves the old one or the
    new one. A consumer that reads it again starts at or before the end of its progress, never
    behind it.
    """

    def __init__(self, group: str, path: str | Path | None) -> None:
        """Raises IllegalConfig if the file is of another group, or no offsets file at all."""
        self._group = group
        self._path = Path(path) if path is not None else None
        self._offsets = self._load()

    @property
    def offsets(self) -> Mapping[QueueRef, int]:
        return self._offsets

    def of(self, broker_set: str) -> dict[QueueRef, int]:
        return {ref: at for ref, at in self._offsets.items() if ref.broker_set == broker_set}

    def adopt(self, topic: str, broker_sets: Sequence[str]) -> None:
        """Offsets of version 1 belong to the set that has the topic. They are dropped if several
        sets have it.
        """
        orphans = {ref: at for ref, at in self._offsets.items() if ref[::2] == (topic, "")}
        if not orphans:
            return
        known = {ref: at for ref, at in self._offsets.items() if ref not in orphans}
        if len(broker_sets) == 1:
            named = {ref._replace(broker_set=broker_sets[0]): at for ref, at in orphans.items()}
            self._offsets = {**named, **known}
        else:
            log.warning(
                "offsets of topic %s of group %s are of before it was in several broker sets (%s): "
                "they are not used",
                topic,
                self._group,
                ", ".join(broker_sets),
            )
            self._offsets = known

    def note(self, offsets: Mapping[QueueRef, int]) -> bool:
        """Returns whether `save` has something to do."""
        if all(self._offsets.get(ref) == at for ref, at in offsets.items()):
            return False
        self._offsets = {**self._offsets, **offsets}
        return self._path is not None

    def save(self) -> None:
        """Durable when it returns. Blocks: must not run on an event loop."""
        if self._path is None:
            return
        topics: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, queue_id, name), queue_offset in sorted(self._offsets.items()):
            topics.setdefault(topic, {}).setdefault(name, {})[str(queue_id)] = queue_offset
        content = {"version": _VERSION, "group": self._group, "offsets": topics}
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)

    def _load(self) -> dict[QueueRef, int]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            version, group = content["version"], content["group"]
            topics = content["offsets"]
            if version == _WITHOUT_SETS:
                topics = {topic: {"": queues} for topic, queues in topics.items()}
            offsets = {
                QueueRef(topic, int(queue_id), name): int(queue_offset)
                for topic, broker_sets in topics.items()
                for name, queues in broker_sets.items()
                for queue_id, queue_offset in queues.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IllegalConfig(
                f"offsets file {self._path} cannot be used ({error!r}): repair it, or move it away "
                "to start anew"
            ) from None
        if version not in (_WITHOUT_SETS, _VERSION):
            raise IllegalConfig(
                f"offsets file {self._path} is of version {version}; this client reads "
                f"{_WITHOUT_SETS} and {_VERSION}"
            )
        if group != self._group:
            raise IllegalConfig(
                f"offsets file {self._path} is of group {group}, not of {self._group}: give each "
                "consumer a file of its own"
            )
        return offsets
