"""What the clients of a soak were told, what they saw, and what is wrong about it.

Every message has a name of its own. Of those that were acknowledged each must be seen; on its topic
it stands once, whatever consumers were given twice; what was rolled back is never seen; what was
delayed is not seen before its time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Work:
    """Of one kind: what was sent, and what came of it."""

    topic: str
    sent: int = 0
    acked: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    # Sent, and nobody knows whether it is stored.
    unknown: int = 0
    # Must never be seen.
    forbidden: set[str] = field(default_factory=set)
    # When each is due.
    due_ms: dict[str, int] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)
    # Acknowledged by a consumer, and given out again.
    done: set[str] = field(default_factory=set)
    reappeared: set[str] = field(default_factory=set)
    # How often each stands on the topic in the end.
    stored: Counter[str] = field(default_factory=Counter)

    def see(self, name: str, now_ms: int) -> None:
        self.seen.add(name)
        if now_ms < self.due_ms.get(name, 0):
            self.early.add(name)

    @property
    def missing(self) -> set[str]:
        return self.acked - self.seen

    @property
    def duplicated(self) -> set[str]:
        return {name for name, count in self.stored.items() if count > 1}

    @property
    def phantom(self) -> set[str]:
        return self.forbidden & (self.seen | self.stored.keys())


class Ledger:
    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        self.kills = 0
        # What failed in a way that no client should meet.
        self.errors: list[str] = []

    def work(self, topic: str) -> Work:
        return self.works.setdefault(topic, Work(topic))

    @property
    def is_drained(self) -> bool:
        return not any(one.missing for one in self.works.values())

    def progress(self) -> str:
        """For people, while it goes on."""
        works = self.works.values()
        acked = sum(len(one.acked) for one in works)
        waiting = sum(len(one.missing) for one in works)
        return f"{acked:,} acknowledged, {waiting:,} of them not seen yet"

    def verdict(self) -> dict[str, int]:
        """Sums over all kinds."""
        works = self.works.values()
        return {
            "acked": sum(len(one.acked) for one in works),
            "lost": sum(len(one.missing) for one in works),
            "duplicated": sum(len(one.duplicated) for one in works),
            "early": sum(len(one.early) for one in works),
            "phantom": sum(len(one.phantom) for one in works),
            "reappeared": sum(len(one.reappeared) for one in works),
            "unknown": sum(one.unknown for one in works),
            "errors": len(self.errors),
            "kills": self.kills,
        }

    def is_good(self) -> bool:
        wrong = ("lost", "duplicated", "early", "phantom", "reappeared", "errors")
        verdict = self.verdict()
        return not any(verdict[name] for name in wrong) and verdict["acked"] > 0

    def details(self) -> str:
        """For people: what is wrong, with some names."""
        lines = list(self.errors[:10])
        for one in self.works.values():
            for what in ("missing", "duplicated", "early", "phantom", "reappeared"):
                names = sorted(getattr(one, what))
                if names:
                    lines.append(f"{one.topic}: {len(names)} {what}, such as {names[:10]}")
        return "\n".join(lines)
