"""How the queues of a topic are spread over broker sets: evenly, the remainder to those with the
fewest queues. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

# Of a topic that is created without a number, in all sets together.
DEFAULT_QUEUES = 8


def needs_loads(queues: int, sets: int, least: int) -> bool:
    """Whether it matters how many queues the sets have: not all of them get the same."""
    return _used(queues, sets, least) < sets or queues % sets != 0


def spread(queues: int, loads: Mapping[str, int], least: int = 1) -> dict[str, int]:
    """How many each set gets. `loads` are the queues that each has; one that would get fewer than
    `least` is left out, unless it is the only one.
    """
    return _dealt(queues, _used(queues, len(loads), least), loads)


def left_over(
    queues: int, there: Mapping[str, int], loads: Mapping[str, int], least: int = 1
) -> dict[str, int] | None:
    """What is still to be created of a topic that some sets have: as `spread` gives it out when
    those were the first to get theirs. None: it was not created like that, or is complete.
    """
    used = _used(queues, len(loads), least)
    share, larger = divmod(queues, used)
    larger_there = sum(count == share + 1 for count in there.values())
    is_of_it = (
        there.keys() <= loads.keys()
        and len(there) < used
        and all(count in (share, share + 1) for count in there.values())
        and larger_there <= larger
        and len(there) - larger_there <= used - larger
    )
    if not is_of_it:
        return None
    others = {name: load for name, load in loads.items() if name not in there}
    return _dealt(queues - sum(there.values()), used - len(there), others)


def _used(queues: int, sets: int, least: int) -> int:
    return max(1, min(sets, queues // max(least, 1)))


def _dealt(queues: int, used: int, loads: Mapping[str, int]) -> dict[str, int]:
    ranked = sorted(loads, key=lambda name: (loads[name], name))[:used]
    share, larger = divmod(queues, used)
    return {name: share + (at < larger) for at, name in enumerate(ranked)}
