"""What becomes of messages that somebody shows handles of: acknowledged, given back, or held
longer. Pure decisions over a draft of the leases.

A handle is good when all of its messages are in the hands of its lease: also when the time is over,
as long as nobody else was given them. One that is not good changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq.broker.queue import Queue
from mq.broker.receive.handles import Handle
from mq.broker.receive.lease_draft import CHANGE_BYTES, QUEUE_BYTES, Draft, Value
from mq.broker.retry.retries import wait_ms
from mq.broker.state.leases import Range

# Makes dead letters of the messages of a range, as many as fit, and says how far it came.
Buries = Callable[[Queue, Range], int]
# What a range that is in somebody's hands becomes.
Settle = Callable[[Handle, Range], None]


def in_hand(draft: Draft, group: str, handle: Handle) -> list[Range] | None:
    """The messages of a handle, by what is known of them. None: it is not good."""
    leases = draft.get(group, handle.queue)
    if leases is None:
        return None
    found: list[Range] = []
    reached = handle.start
    for one in leases.within(handle.start, handle.end):
        if one.lease != handle.lease or one.start > reached:
            return None
        reached = min(one.end, handle.end)
        found.append(one._replace(start=max(one.start, handle.start), end=reached))
    return found if reached == handle.end else None


def settle(draft: Draft, group: str, handles: Sequence[Handle | None], how: Settle) -> list[bool]:
    """Whether each one was good."""
    good = [False] * len(handles)
    for first, stop, joined in _joined(handles):
        ranges = in_hand(draft, group, joined)
        if ranges is not None:
            good[first:stop] = [True] * (stop - first)
            for one in ranges:
                how(joined, one)
        elif stop - first > 1:
            good[first:stop] = [
                verdict
                for handle in handles[first:stop]
                for verdict in settle(draft, group, [handle], how)
            ]
    return good


def size_bytes(handles: Sequence[Handle | None]) -> int:
    """What their changes take of an entry, rather more than less."""
    joined = _joined(handles)
    queues = len({handle.queue for _, _, handle in joined})
    return len(joined) * CHANGE_BYTES + queues * QUEUE_BYTES


def _joined(handles: Sequence[Handle | None]) -> list[tuple[int, int, Handle]]:
    """Neighbours of one lease as one, with the places that they came from."""
    joined: list[tuple[int, int, Handle]] = []
    for at, handle in enumerate(handles):
        if handle is None:
            continue
        if joined:
            first, stop, last = joined[-1]
            if stop == at and last[:2] == handle[:2] and last.end == handle.start:
                joined[-1] = first, at + 1, last._replace(end=handle.end)
                continue
        joined.append((at, at + 1, handle))
    return joined


def acknowledge(draft: Draft, group: str) -> Settle:
    return _putting(draft, group, lambda _: None)


def hold_longer(draft: Draft, group: str, visible_at_ms: int) -> Settle:
    return _putting(draft, group, lambda one: (one.lease, visible_at_ms, one.attempts))


def give_back(
    draft: Draft,
    group: str,
    now_ms: int,
    delay_ms: int | None,
    retries_max: int,
    bury: Buries,
) -> Settle:
    """Visible again after the delay, or by the number of its attempts; what was given out too often
    is a dead letter.
    """

    def how(handle: Handle, one: Range) -> None:
        start = bury(handle.queue, one) if one.attempts > retries_max else one.start
        wait = wait_ms(one.attempts) if delay_ms is None else delay_ms
        # What could not be buried now, is soon: nobody is given it any more.
        visible_at_ms = now_ms + (0 if one.attempts > retries_max else wait)
        draft.put(group, handle.queue, start, one.end, (0, visible_at_ms, one.attempts))

    return how


def take_back(draft: Draft, group: str, now_ms: int) -> Settle:
    """As if they had not been given out."""
    return _putting(draft, group, lambda one: (0, now_ms, one.attempts - 1))


def _putting(draft: Draft, group: str, value: Callable[[Range], Value]) -> Settle:
    def how(handle: Handle, one: Range) -> None:
        draft.put(group, handle.queue, one.start, one.end, value(one))

    return how
