"""Quotas: how much users and namespaces may do in a time, and how much they may keep.

A rate is a token bucket that may go into debt. What comes is taken, and the answer says for how
long the caller should pause; a caller that owes a second already is refused, and told when it will
owe less. Consumers are not refused: what is delivered to them waits. Amounts (what is stored, or
there at all) are refused beyond their limit, and waiting does not help.

Quotas are part of the replicated state (`mq.broker.state.access`); what was used of a rate is the
memory of one node. A user is limited by its own quota, or by `default`, and by that of the
namespace that a name is in. Topics count for the user that created them.

Nothing here reads a clock by itself or waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from mq import names
from mq.broker.state.access import DEFAULT_QUOTA
from mq.broker.state.state import State
from mq.broker.state.topics import Topic
from mq.errors import FlowControl, QuotaExceeded
from mq.store.batch import Batch
from mq.wire.v1.security_pb2 import Quota

RATES: Final = (
    "publish_bytes_per_s",
    "publish_messages_per_s",
    "delivered_bytes_per_s",
    "catalog_changes_per_s",
)
# A caller that owes this much is refused.
DEBT_MS_MAX: Final = 1_000
# What a caller that was idle may use at once.
_SAVED_MS: Final = 250
# One delivery takes at most the bytes of this time, if a message is not larger.
_DELIVERY_MS: Final = 250
# Room below a limit is counted anew after this time; and when it is used up, but not much more
# often: that takes a look at every topic.
_COUNTED_MS: Final = 1_000
_RECOUNTED_MS: Final = 10
# Subjects that are remembered: callers have namespaces and users of their choice.
_SUBJECTS_MAX: Final = 10_000


class Bucket:
    """So much a second. Its level is what may be used at once; below 0 it is a debt."""

    __slots__ = ("_at_ms", "_level", "rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        self.rate = rate
        self._level = rate * _SAVED_MS / 1_000
        self._at_ms = now_ms

    def take(self, amount: int, now_ms: int) -> int:
        """Returns for how long nothing more should be taken, in ms."""
        self._fill(now_ms)
        self._level -= amount
        return self._debt_ms()

    def debt_ms(self, now_ms: int) -> int:
        """The time until nothing is owed."""
        self._fill(now_ms)
        return self._debt_ms()

    def _fill(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            level = self._level + (now_ms - self._at_ms) * self.rate / 1_000
            self._level = min(level, self.rate * _SAVED_MS / 1_000)
            self._at_ms = now_ms

    def _debt_ms(self) -> int:
        # Upwards: a caller that comes back after this time owes nothing.
        return max(0, -int(self._level * 1_000 // self.rate))


class _Room:
    """The rest below a limit. Counted now and then; in between, admitted amounts are deducted."""

    __slots__ = ("_counted_ms", "_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = 0
        self._counted_ms: int | None = None

    def holds(self, amount: int, now_ms: int, count: Callable[[], int]) -> bool:
        age_ms = _COUNTED_MS if self._counted_ms is None else now_ms - self._counted_ms
        is_short = self._left < amount and age_ms >= _RECOUNTED_MS
        if age_ms >= _COUNTED_MS or is_short:
            self._left, self._counted_ms = self._limit - count(), now_ms
        return self._left >= amount

    def take(self, amount: int) -> None:
        self._left -= amount


class _Subject:
    """A user or a namespace with a quota, and what it has used."""

    def __init__(self, name: str, quota: Quota, now_ms: int) -> None:
        self.name = name
        self.quota = quota
        self.buckets = {
            rate: Bucket(getattr(quota, rate), now_ms) for rate in RATES if getattr(quota, rate)
        }
        self._rooms: dict[str, _Room] = {}

    def room(self, limit: str) -> _Room | None:
        """None: there is no such limit."""
        value = getattr(self.quota, limit)
        if not value:
            return None
        found = self._rooms.get(limit)
        if found is None:
            found = self._rooms[limit] = _Room(value)
        return found

    def owns(self, topic: Topic) -> bool:
        """Whether the topic counts for it."""
        kind, _, name = self.name.partition(":")
        if kind == "user":
            return bool(name) and topic.owner == name
        return names.namespace_of(topic.name) == name


class _Use(NamedTuple):
    rate: str
    amount: int


class Quotas:
    def __init__(
        self, state: State, stored_bytes: Callable[[str], int], steady_ms: Callable[[], int]
    ) -> None:
        """`stored_bytes` of a topic; `steady_ms` is a monotonic clock."""
        self._state = state
        self._stored_bytes = stored_bytes
        self._steady_ms = steady_ms
        # False: there is no quota at all, and callers need not ask.
        self.is_limiting = False
        self._subjects: dict[str, _Subject | None] = {}
        self._streams: Counter[str] = Counter()
        # Topics that are being created.
        self._new_topics: list[Topic] = []
        # By the name of the limit: the time that callers were told to pause, and refusals.
        self.throttled_ms: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.on_change()

    def on_change(self) -> None:
        """Quotas may be others now. What is owed to one that did not change is still owed."""
        self.is_limiting = bool(self._state.access.quotas)
        kept = self._subjects
        self._subjects = {}
        for name, subject in kept.items():
            if subject is not None and subject.quota == self._quota(name):
                self._subjects[name] = subject

    def _quota(self, name: str) -> Quota | None:
        access = self._state.access
        found = access.quota(name)
        if found is None and name.startswith("user:"):
            found = access.quota(DEFAULT_QUOTA)
        return found

    def _subject(self, name: str) -> _Subject | None:
        if name not in self._subjects:
            if len(self._subjects) >= _SUBJECTS_MAX:
                self._forget_idle()
            quota = self._quota(name)
            self._subjects[name] = (
                _Subject(name, quota, self._steady_ms()) if quota is not None else None
            )
        return self._subjects[name]

    def _forget_idle(self) -> None:
        now_ms = self._steady_ms()
        self._subjects = {
            name: one
            for name, one in self._subjects.items()
            if one is not None and any(bucket.debt_ms(now_ms) for bucket in one.buckets.values())
        }

    def _limiting(self, user: str, namespace: str) -> Iterator[_Subject]:
        """The subjects whose quotas hold for this user and names of this namespace."""
        found = self._subject(f"user:{user}")
        if found is not None:
            yield found
        if namespace:
            found = self._subject(f"namespace:{namespace}")
            if found is not None:
                yield found

    def _limiting_topic(self, topic: Topic) -> Iterator[_Subject]:
        """Those that the topic counts for."""
        for one in self._limiting(topic.owner, names.namespace_of(topic.name)):
            if one.owns(topic):
                yield one

    # -- rates ------------------------------------------------------------------------------------

    def _check(self, subjects: Iterable[_Subject], rates: Sequence[str], now_ms: int) -> None:
        """Raises FlowControl if one of them owes a second."""
        for subject in subjects:
            for rate in rates:
                bucket = subject.buckets.get(rate)
                debt_ms = bucket.debt_ms(now_ms) if bucket is not None else 0
                if bucket is not None and debt_ms >= DEBT_MS_MAX:
                    self.refusals[rate] += 1
                    raise FlowControl(
                        f"quota {rate} of {subject.name} is {bucket.rate}, and used up for "
                        f"{debt_ms} ms ahead",
                        # Then the next one is taken.
                        debt_ms - DEBT_MS_MAX + 1,
                    )

    def _use(self, subjects: Iterable[_Subject], uses: Sequence[_Use], now_ms: int) -> int:
        """Returns for how long the caller should pause, in ms."""
        pause_ms, because = 0, ""
        for subject in subjects:
            for rate, amount in uses:
                bucket = subject.buckets.get(rate)
                if bucket is not None and (debt_ms := bucket.take(amount, now_ms)) > pause_ms:
                    pause_ms, because = debt_ms, rate
        if pause_ms:
            self.throttled_ms[because] += pause_ms
        return pause_ms

    def publish(
        self, user: str, topic: str, size_bytes: int, messages: int, held: tuple[str, int] = ("", 0)
    ) -> int:
        """Messages to a topic are about to be written. `held`: if they are held back, the limit of
        such, and what they take of it. Returns for how long the caller should pause, in ms. Raises
        FlowControl, QuotaExceeded: then nothing counts.
        """
        if not self.is_limiting:
            return 0
        now_ms = self._steady_ms()
        subjects = [*self._limiting(user, names.namespace_of(topic))]
        self._check(subjects, RATES[:2], now_ms)
        found = self._state.topics.get(topic)
        if found is not None:
            self._keep(found, [("stored_bytes", size_bytes), held], now_ms)
        uses = [_Use("publish_bytes_per_s", size_bytes), _Use("publish_messages_per_s", messages)]
        return self._use(subjects, uses, now_ms)

    def publish_batch(self, user: str, batch: Batch) -> int:
        """As `publish`."""
        if not self.is_limiting:
            return 0
        held = "", 0
        if batch.half:
            held = "open_transactions", 1
        elif batch.deliver_at_ms or batch.delay_ms:
            held = "delayed_messages", batch.message_count
        return self.publish(user, batch.topic, len(batch.data), batch.message_count, held)

    def deliver(self, user: str, topic: str, size_bytes: int) -> int:
        """Messages of a topic go out to a consumer. Returns for how long it gets no more."""
        if not self.is_limiting:
            return 0
        subjects = [*self._limiting(user, names.namespace_of(topic))]
        return self._use(subjects, [_Use("delivered_bytes_per_s", size_bytes)], self._steady_ms())

    def delivery_debt_ms(self, user: str, topic: str) -> int:
        """For how long a consumer should get nothing."""
        if not self.is_limiting:
            return 0
        now_ms = self._steady_ms()
        found = (
            one.buckets.get("delivered_bytes_per_s")
            for one in self._limiting(user, names.namespace_of(topic))
        )
        return max((one.debt_ms(now_ms) for one in found if one is not None), default=0)

    def delivery_bytes_max(self, user: str, topic: str) -> int | None:
        """So much may go out at once, or one message that is larger; None: there is no limit."""
        if not self.is_limiting:
            return None
        subjects = self._limiting(user, names.namespace_of(topic))
        rates = [one.quota.delivered_bytes_per_s for one in subjects]
        limits = [max(1, rate * _DELIVERY_MS // 1_000) for rate in rates if rate]
        return min(limits, default=None)

    def check_delivery(self, user: str, topic: str) -> None:
        """Raises FlowControl if a consumer owes a second: for calls that waited already."""
        if self.is_limiting:
            subjects = [*self._limiting(user, names.namespace_of(topic))]
            self._check(subjects, RATES[2:3], self._steady_ms())

    def change_catalog(self, user: str, name: str) -> None:
        """A topic or group of this name is created, changed or deleted. FlowControl."""
        if not self.is_limiting:
            return
        now_ms, subjects = self._steady_ms(), [*self._limiting(user, names.namespace_of(name))]
        self._check(subjects, RATES[3:], now_ms)
        self._use(subjects, [_Use("catalog_changes_per_s", 1)], now_ms)

    # -- amounts ----------------------------------------------------------------------------------

    def _keep(self, topic: Topic, amounts: Sequence[tuple[str, int]], now_ms: int) -> None:
        """Raises QuotaExceeded if those that the topic counts for have no room for so much more."""
        taken: list[tuple[_Room, int]] = []
        for subject in self._limiting_topic(topic):
            for limit, amount in amounts:
                room = subject.room(limit) if limit else None
                if room is None:
                    continue
                if not room.holds(amount, now_ms, partial(self._kept, subject, limit)):
                    raise self._exceeded(subject, limit, self._kept(subject, limit))
                taken.append((room, amount))
        for room, amount in taken:
            room.take(amount)

    def _kept(self, subject: _Subject, limit: str) -> int:
        """Counted over its topics."""
        state = self._state
        topics = [one.name for one in state.topics if subject.owns(one)]
        match limit:
            case "stored_bytes":
                return sum(map(self._stored_bytes, topics))
            case "delayed_messages":
                return sum(map(state.topics.delayed_messages, topics))
            case _:
                return sum(state.transactions.open_by_topic[one] for one in topics)

    @contextmanager
    def creating(self, topic: Topic) -> Iterator[None]:
        """A topic is created or gets more queues. Raises QuotaExceeded."""
        if not self.is_limiting:
            yield
            return
        for subject in self._limiting_topic(topic):
            known = {
                one.name: one.read_queues
                for one in (*self._state.topics, *self._new_topics)
                if subject.owns(one)
            }
            more = {**known, topic.name: topic.read_queues}
            for limit, now, then in (
                ("topics", len(known), len(more)),
                ("queues", sum(known.values()), sum(more.values())),
            ):
                allowed = getattr(subject.quota, limit)
                if allowed and then > max(now, allowed):
                    raise self._exceeded(subject, limit, now)
        self._new_topics.append(topic)
        try:
            yield
        finally:
            self._new_topics.remove(topic)

    def limits_groups(self, user: str, group: str) -> bool:
        """Whether a new group has to ask `check_group`."""
        return self.is_limiting and any(
            one.quota.groups for one in self._limiting(user, names.namespace_of(group))
        )

    def check_group(self, user: str, group: str, being_made: Iterable[tuple[str, str]]) -> None:
        """A group that is not known is about to begin, beside others that are: each with its
        user. Raises QuotaExceeded.
        """
        offsets = self._state.offsets
        owners = {name: offsets.owner(name) for name in offsets.groups()}
        owners.update(being_made)
        for subject in self._limiting(user, names.namespace_of(group)):
            kind, _, name = subject.name.partition(":")
            if kind == "user":
                count = sum(owner == name for owner in owners.values())
            else:
                count = sum(names.namespace_of(one) == name for one in owners)
            if 0 < subject.quota.groups <= count:
                raise self._exceeded(subject, "groups", count)

    @contextmanager
    def streaming(self, user: str, namespace: str) -> Iterator[None]:
        """A stream of the caller, as long as it lasts: counted always, because a quota may come
        while it does. Raises QuotaExceeded.
        """
        if self.is_limiting:
            for subject in self._limiting(user, namespace):
                count = self._streams[subject.name]
                if 0 < subject.quota.streams <= count:
                    raise self._exceeded(subject, "streams", count)
        counted = [f"user:{user}", *([f"namespace:{namespace}"] if namespace else [])]
        self._streams.update(counted)
        try:
            yield
        finally:
            self._streams.subtract(counted)
            for name in counted:
                if not self._streams[name]:
                    del self._streams[name]

    def _exceeded(self, subject: _Subject, limit: str, count: int) -> QuotaExceeded:
        self.refusals[limit] += 1
        allowed = getattr(subject.quota, limit)
        return QuotaExceeded(f"quota {limit} of {subject.name} is {allowed}, and {count} are there")
