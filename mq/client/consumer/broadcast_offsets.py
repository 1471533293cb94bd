"""Where a broadcast consumer is: in memory, or in a file of its own.

The file is a small JSON object and is replaced as a whole, so a crash leaves the old one or the new
one. Whoever reads it again starts a little before the end of what was done, never behind it. Files
of version 1 name no broker sets: their offsets belong to the set that has the topic, if it is one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mq.client.messages import QueueRef
from mq.errors import IllegalConfig

log = logging.getLogger(__name__)

_VERSION = 2
# topic -> broker set -> queue id -> queue offset; in version 1 without the sets.
_WITHOUT_SETS = 1


class BroadcastOffsets:
    """Of one group on this machine; two consumers must not share a file."""

    def __init__(self, group: str, path: str | Path | None) -> None:
        """IllegalConfig when the file is of another group, or is not such a file at all."""
        self._group = group
        self._path = Path(path) if path is not None else None
        self._offsets = self._load()

    @property
    def offsets(self) -> Mapping[QueueRef, int]:
        return self._offsets

    def of(self, broker_set: str) -> dict[QueueRef, int]:
        return {ref: at for ref, at in self._offsets.items() if ref.broker_set == broker_set}

    def adopt(self, topic: str, broker_sets: Sequence[str]) -> None:
        """These have the topic. Of offsets without a set it is known now which they are of, unless
        there is a choice: then they are of no use.
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
        """Whether anything in it is new, and so is to be saved."""
        if all(self._offsets.get(ref) == at for ref, at in offsets.items()):
            return False
        self._offsets = {**self._offsets, **offsets}
        return self._path is not None

    def save(self) -> None:
        """Durable when it returns. Blocks: not for an event loop."""
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
