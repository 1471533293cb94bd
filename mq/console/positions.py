"""Places in queues as text, for URLs and the ids of events: `set-0:0:12,15,9;set-1:4:7`.

That is a broker set, the number of its first queue, and the queue offsets from that queue on. Text
that is no such vector is an IllegalRequest; one that is names queues, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from mq.client.messages import QueueRef
from mq.errors import IllegalRequest

_OFFSET_MAX = (1 << 63) - 1
_TEXT_MAX = 48 << 10
_QUEUES_MAX = 65_536

Positions = dict[QueueRef, int]


def encode(positions: Mapping[QueueRef, int]) -> str:
    ordered = sorted(positions.items(), key=lambda one: (one[0].broker_set, one[0].queue_id))
    # Queues that follow each other have the same difference to their place.
    runs = groupby(
        enumerate(ordered), lambda one: (one[1][0].broker_set, one[1][0].queue_id - one[0])
    )
    parts = []
    for (name, _), run in runs:
        found = [each for _, each in run]
        numbers = ",".join(str(at) for _, at in found)
        parts.append(f"{name}:{found[0][0].queue_id}:{numbers}")
    return ";".join(parts)


def decode(topic: str, text: str) -> Positions:
    """Raises IllegalRequest."""
    found: Positions = {}
    if len(text) > _TEXT_MAX:
        raise IllegalRequest("the place of this link is too long")
    for part in filter(None, text.split(";")):
        name, _, rest = part.partition(":")
        first, _, numbers = rest.partition(":")
        places = numbers.split(",")
        if not (name.isprintable() and name and _is_number(first) and all(map(_is_number, places))):
            raise IllegalRequest(f"{part[:100]!r} is no place in a topic")
        for at, place in enumerate(places):
            queue_id = int(first) + at
            if queue_id >= _QUEUES_MAX or int(place) > _OFFSET_MAX:
                raise IllegalRequest(f"{part[:100]!r} is no place in a topic")
            found[QueueRef(topic, queue_id, name)] = int(place)
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
