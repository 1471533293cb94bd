"""Which messages a page shows, as its URL says it: a topic, a place to begin, filters.

The same question is asked by the page, its download and its live tail, and can be written as a
command. No filter is code: tags and SQL are the broker's, text is looked for as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq.client.messages import FilterLike, QueueRef, Sql
from mq.console import formats, positions
from mq.console.callers import Caller
from mq.console.positions import Positions
from mq.console.scanning import Lane, Predicate, contains
from mq.console.times import parse_ms
from mq.errors import IllegalRequest, QueueNotFound

PLACES = ("newest", "oldest", "time", "offset", "group")

_TEXT_MAX = 4_096


@dataclass(frozen=True, slots=True)
class MessageQuery:
    topic: str = ""
    place: str = "newest"
    time: str = ""
    queue: str = ""
    queue_offset: str = ""
    group: str = ""
    tag: str = ""
    sql: str = ""
    text: str = ""
    key: str = ""
    # Where a page before this one ended.
    after: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> MessageQuery:
        def get(name: str) -> str:
            text = values.get(name, "").strip()
            if len(text) > _TEXT_MAX and name != "after":
                raise IllegalRequest(f"{name} is longer than {_TEXT_MAX:,} characters")
            return text

        place = get("from") or ("group" if get("group") else "newest")
        if place not in PLACES:
            raise IllegalRequest(f"from = {place[:50]!r}: use one of {', '.join(PLACES)}")
        return cls(
            get("topic"),
            place,
            get("time"),
            get("queue"),
            get("offset"),
            get("group"),
            get("tag"),
            get("sql"),
            get("text"),
            get("key"),
            get("after"),
        )

    @property
    def is_backward(self) -> bool:
        return self.place == "newest"

    @property
    def wanted(self) -> FilterLike:
        if self.tag and self.sql:
            raise IllegalRequest("tag and SQL are two filters of the broker: give one of them")
        return Sql(self.sql) if self.sql else self.tag or None

    @property
    def predicate(self) -> Predicate | None:
        return contains(self.text) if self.text else None

    @property
    def queue_ref(self) -> QueueRef | None:
        """The queue that was chosen, as `set/number`."""
        if not self.queue:
            return None
        name, _, number = self.queue.rpartition("/")
        if not (number.isascii() and number.isdecimal() and len(number) < 6):
            raise IllegalRequest(f"queue {self.queue[:100]!r} is not like set-0/3")
        return QueueRef(self.topic, int(number), name)

    @property
    def command(self) -> str:
        """The command that shows about the same on a terminal."""
        if self.key:
            return formats.command("message", "query", "--topic", self.topic, "--key", self.key)
        if self.place == "group":
            # It says where the group is; reading on as the group would consume.
            return formats.command("group", "describe", self.group)
        words: list[object] = ["message", "browse", "--topic", self.topic]
        if begin := self._browsed_from:
            words += ["--from", begin]
        if self.queue_ref is not None:
            chosen = self.queue_ref.broker_set
            words += ["--queue", self.queue_ref.queue_id, *(["--set", chosen] if chosen else [])]
        if self.tag:
            words += ["--tags", self.tag]
        if self.sql:
            words += ["--sql", self.sql]
        return formats.command(*words)

    @property
    def _browsed_from(self) -> str:
        return {"newest": "latest", "time": self.time, "offset": self.queue_offset}.get(
            self.place, ""
        )

    async def lanes(self, caller: Caller) -> list[Lane]:
        """The queues, each with the stretch that is still to be read. TopicNotFound."""
        described = await caller.admin.describe_topic(self.topic)
        chosen = self.queue_ref
        lanes = [
            Lane(ref, one.start, one.end, one.last_stored_at_ms)
            for one in sorted(described.queues, key=lambda one: (one.broker_set, one.queue_id))
            if (ref := QueueRef(self.topic, one.queue_id, one.broker_set)) == (chosen or ref)
        ]
        if not lanes and described.queues:
            raise QueueNotFound(f"topic {self.topic} has no queue {self.queue}")
        for lane, at in zip(lanes, await self._places(caller, lanes), strict=True):
            if self.is_backward:
                lane.high = max(lane.low, min(lane.high, at))
            else:
                lane.low = min(lane.high, max(lane.low, at))
                lane.bound_ms = 0
        return lanes

    async def _places(self, caller: Caller, lanes: list[Lane]) -> list[int]:
        if self.after:
            found: Positions = positions.decode(self.topic, self.after)
            return [found.get(one.ref, one.high if self.is_backward else one.low) for one in lanes]
        match self.place:
            case "newest":
                return [one.high for one in lanes]
            case "time":
                at = await caller.pull.find_offsets(self.topic, parse_ms(self.time))
                return [at.get(one.ref, one.high) for one in lanes]
            case "offset":
                if not (self.queue_offset.isdecimal() and len(self.queue_offset) < 19):
                    raise IllegalRequest(f"offset {self.queue_offset[:50]!r} is no number")
                return [int(self.queue_offset)] * len(lanes)
            case "group":
                if not self.group:
                    raise IllegalRequest("not consumed by which group? name one")
                group = await caller.admin.describe_group(self.group)
                committed = {
                    QueueRef(one.topic, one.queue_id, one.broker_set): one.committed
                    for one in group.queues
                }
                return [max(0, committed.get(one.ref, 0)) for one in lanes]
        return [one.low for one in lanes]
