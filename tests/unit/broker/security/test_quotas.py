"""Quotas: rates as buckets that may go into debt, amounts that are kept, and who is limited by
which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.security.quotas import DEBT_MS_MAX, Bucket, Quotas
from mq.broker.state.state import State
from mq.errors import FlowControl, QuotaExceeded
from mq.wire.v1.security_pb2 import AccessChange, AccessNamespace, Quota, User
from mq.wire.v1.state_pb2 import PutGroup, PutTopic

if TYPE_CHECKING:
    from mq.broker.state.topics import Topic


# -- buckets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1, 7, 1_000, 50_000_000])
def test_a_caller_that_pauses_gets_its_rate_within_five_percent(rate: int) -> None:
    bucket, now_ms, taken = Bucket(rate, 0), 0, 0
    size = max(1, rate // 20)
    while now_ms < 10_000:
        taken += size
        now_ms += bucket.take(size, now_ms)
    # One that is larger than what is allowed at once may be ahead by itself.
    assert taken == pytest.approx(10 * rate, rel=0.05, abs=size)


@pytest.mark.parametrize("rate", [1, 7, 1_000, 50_000_000])
def test_a_caller_that_never_pauses_gets_its_rate_within_five_percent(rate: int) -> None:
    """Once it owes a second: that is what it is ahead, and stays."""
    bucket, taken, sizes = Bucket(rate, 0), [], max(1, rate // 50)
    for now_ms in range(0, 30_000, 5):
        while bucket.debt_ms(now_ms) < DEBT_MS_MAX:
            bucket.take(sizes, now_ms)
            taken.append(now_ms)
    steady = sum(sizes for at in taken if 10_000 <= at < 20_000)
    assert steady == pytest.approx(10 * rate, rel=0.05)


STEPS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 5_000)), max_size=60)


@given(st.integers(1, 10_000), STEPS)
def test_what_is_taken_never_exceeds_what_time_allows(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """A second of debt, one step beyond it, and a quarter of a second saved."""
    bucket, now_ms, taken, largest = Bucket(rate, 0), 0, 0, 0
    for passed_ms, amount in steps:
        now_ms += passed_ms
        if bucket.debt_ms(now_ms) < DEBT_MS_MAX:
            bucket.take(amount, now_ms)
            taken += amount
            largest = max(largest, amount)
    assert taken <= rate * (now_ms + DEBT_MS_MAX + 250) / 1_000 + largest + 1


@given(st.integers(1, 10**9), st.integers(0, 10**10), st.integers(0, 10**6))
def test_a_debt_is_paid_when_it_says(rate: int, amount: int, now_ms: int) -> None:
    bucket = Bucket(rate, now_ms)
    pause_ms = bucket.take(amount, now_ms)
    assert bucket.debt_ms(now_ms + pause_ms) == 0
    if pause_ms > 1:
        assert Bucket(rate, now_ms).take(amount, now_ms) == pause_ms
        other = Bucket(rate, now_ms)
        other.take(amount, now_ms)
        assert other.debt_ms(now_ms + pause_ms - 1) > 0


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(1_000, 500)
    bucket.take(1_250, 500)
    assert bucket.debt_ms(500) == bucket.debt_ms(100) == 1_000


# -- quotas ----------------------------------------------------------------------------------------


class Scene:
    """Quotas over a state of their own, and a clock."""

    def __init__(self, *quotas: Quota) -> None:
        self.now_ms = 1_000
        self.stored: dict[str, int] = {}
        self.state = State()
        self.quotas = Quotas(self.state, lambda name: self.stored.get(name, 0), lambda: self.now_ms)
        self.change(*(AccessChange(put_user=User(name=name)) for name in ("ann", "bob")))
        self.change(AccessChange(put_namespace=AccessNamespace(name="acme")))
        self.put(*quotas)

    def change(self, *changes: AccessChange) -> None:
        self.state.access.change(changes)
        self.quotas.on_change()

    def put(self, *quotas: Quota) -> None:
        self.change(*(AccessChange(put_quota=one) for one in quotas))

    def topic(self, name: str, owner: str = "", queues: int = 2) -> Topic:
        command = PutTopic(topic=name, write_queues=queues, read_queues=queues, owner=owner)
        self.state.topics.put(command, 1)
        return self.state.topics.find(name)

    def publish(self, user: str, topic: str = "t", size: int = 100, messages: int = 1) -> int:
        return self.quotas.publish(user, topic, size, messages)


def test_without_a_quota_nothing_is_counted() -> None:
    scene = Scene()
    assert not scene.quotas.is_limiting
    assert scene.publish("ann", size=10**12) == 0
    assert scene.quotas.deliver("ann", "t", 10**12) == 0
    assert scene.quotas.delivery_bytes_max("ann", "t") is None
    scene.quotas.change_catalog("ann", "t")
    assert scene.quotas._subjects == {}


def test_a_batch_beyond_the_rate_is_taken_and_the_caller_told_to_pause() -> None:
    scene = Scene(Quota(subject="user:ann", publish_bytes_per_s=1_000))
    assert scene.publish("ann", size=250) == 0
    assert scene.publish("ann", size=500) == 500
    assert scene.publish("ann", size=499) == 999
    assert scene.publish("ann", size=2_000) == 2_999
    with pytest.raises(FlowControl, match="publish_bytes_per_s of user:ann is 1000") as refused:
        scene.publish("ann")
    assert refused.value.retry_after_ms == 2_000
    assert scene.quotas.refusals == {"publish_bytes_per_s": 1}
    assert scene.quotas.throttled_ms["publish_bytes_per_s"] == 500 + 999 + 2_999
    scene.now_ms += refused.value.retry_after_ms
    assert scene.publish("ann", size=1) == 1_000


def test_each_user_has_the_default_for_itself_and_its_own_in_place_of_it() -> None:
    scene = Scene(
        Quota(subject="default", publish_messages_per_s=10),
        Quota(subject="user:bob", publish_bytes_per_s=1_000),
    )
    assert scene.publish("ann", messages=20) > 0
    assert scene.publish("carol", messages=2) == 0
    assert scene.publish("bob", messages=1_000) == 0
    with pytest.raises(FlowControl, match="publish_messages_per_s of user:ann"):
        scene.publish("ann")


def test_a_namespace_is_limited_over_all_of_its_users() -> None:
    scene = Scene(Quota(subject="namespace:acme", publish_bytes_per_s=1_000))
    assert scene.publish("ann", "acme%t", size=800) == 550
    assert scene.publish("bob", "%RETRY%acme%g", size=800) == 1_350
    assert scene.publish("bob", "t", size=10_000) == 0
    with pytest.raises(FlowControl, match="namespace:acme"):
        scene.publish("ann", "acme%u")


def test_a_debt_outlives_a_change_of_others_and_not_one_of_its_own() -> None:
    scene = Scene(Quota(subject="user:ann", publish_bytes_per_s=1_000))
    scene.publish("ann", size=5_000)
    scene.put(Quota(subject="user:bob", publish_bytes_per_s=1))
    with pytest.raises(FlowControl):
        scene.publish("ann")
    scene.put(Quota(subject="user:ann", publish_bytes_per_s=2_000))
    assert scene.publish("ann", size=500) == 0
    scene.change(AccessChange(drop_quota="user:ann"))
    assert scene.publish("ann", size=10**9) == 0


def test_deliveries_are_delayed_and_catalogue_changes_refused() -> None:
    scene = Scene(Quota(subject="user:ann", delivered_bytes_per_s=1_000, catalog_changes_per_s=2))
    quotas = scene.quotas
    assert quotas.delivery_bytes_max("ann", "t") == 250
    assert quotas.deliver("ann", "t", 1_250) == quotas.delivery_debt_ms("ann", "t") == 1_000
    with pytest.raises(FlowControl, match="delivered_bytes_per_s"):
        quotas.check_delivery("ann", "t")
    assert quotas.delivery_debt_ms("bob", "t") == 0
    for _ in range(3):
        quotas.change_catalog("ann", "t")
    with pytest.raises(FlowControl, match="catalog_changes_per_s"):
        quotas.change_catalog("ann", "t")


def test_stored_bytes_of_the_topics_of_a_user() -> None:
    scene = Scene(Quota(subject="user:ann", stored_bytes=1_000))
    for name, owner in (("a", "ann"), ("b", "ann"), ("c", "bob"), ("d", "")):
        scene.topic(name, owner)
    scene.stored = {"a": 600, "b": 300, "c": 5_000}
    # Whoever writes to them.
    scene.publish("bob", "a", size=60)
    scene.publish("ann", "b", size=40)
    with pytest.raises(QuotaExceeded, match="stored_bytes of user:ann is 1000, and 900 are there"):
        scene.publish("bob", "a", size=1)
    for name in ("c", "d", "not there yet"):
        scene.publish("ann", name, size=10**9)
    # Retention makes room.
    scene.stored["a"] = 0
    scene.now_ms += 10
    scene.publish("bob", "a", size=700)
    with pytest.raises(QuotaExceeded):
        scene.publish("bob", "a", size=1)


def test_what_the_broker_writes_by_itself_is_counted_after_a_second() -> None:
    scene = Scene(Quota(subject="namespace:acme", stored_bytes=1_000))
    scene.topic("acme%t")
    scene.topic("%DLQ%acme%g")
    scene.publish("ann", "acme%t", size=10)
    scene.stored["%DLQ%acme%g"] = 995
    scene.now_ms += 1_000
    with pytest.raises(QuotaExceeded):
        scene.publish("ann", "acme%t", size=10)


def test_delayed_messages_and_open_transactions_of_a_topics_owner() -> None:
    scene = Scene(Quota(subject="user:ann", delayed_messages=3, open_transactions=1))
    scene.topic("a", "ann")
    scene.state.topics.count_delayed("a", 2)
    publish = scene.quotas.publish
    publish("bob", "a", 10, 1, ("delayed_messages", 1))
    with pytest.raises(QuotaExceeded, match="delayed_messages"):
        publish("bob", "a", 10, 1, ("delayed_messages", 1))
    publish("bob", "a", 10, 1)
    publish("bob", "a", 10, 1, ("open_transactions", 1))
    with pytest.raises(QuotaExceeded, match="open_transactions"):
        publish("bob", "a", 10, 1, ("open_transactions", 1))
    scene.now_ms += 10
    publish("bob", "a", 10, 1, ("open_transactions", 1))


def new_topic(name: str, owner: str, queues: int = 2) -> Topic:
    """As it is before it is created."""
    return Scene().topic(name, owner, queues)


def test_topics_and_queues_are_counted_with_those_that_are_being_created() -> None:
    scene = Scene(Quota(subject="user:ann", topics=2, queues=7))
    scene.topic("a", "ann")
    quotas = scene.quotas
    with quotas.creating(new_topic("b", "ann")):
        with (
            pytest.raises(QuotaExceeded, match="topics of user:ann is 2, and 2 are there"),
            quotas.creating(new_topic("c", "ann")),
        ):
            pass
        with quotas.creating(new_topic("c", "bob", 100)):
            pass
    # The one that is there gets more queues.
    with quotas.creating(new_topic("a", "ann", 7)):
        pass
    with (
        pytest.raises(QuotaExceeded, match="queues"),
        quotas.creating(new_topic("a", "ann", 8)),
    ):
        pass
    # One that has more than is allowed by now may have fewer, or other settings.
    scene.put(Quota(subject="user:ann", topics=1, queues=1))
    with quotas.creating(new_topic("a", "ann", 2)):
        pass


def test_groups_are_counted_by_the_user_that_began_them_and_by_namespace() -> None:
    scene = Scene(Quota(subject="user:ann", groups=2), Quota(subject="namespace:acme", groups=1))
    quotas, offsets = scene.quotas, scene.state.offsets
    assert quotas.limits_groups("ann", "g")
    assert not quotas.limits_groups("bob", "g")
    assert quotas.limits_groups("bob", "acme%g")
    offsets.put(PutGroup(group="g", owner="ann"))
    offsets.put(PutGroup(group="h", retries_max=3))
    quotas.check_group("ann", "i", [])
    with pytest.raises(QuotaExceeded, match="groups of user:ann is 2, and 2 are there"):
        quotas.check_group("ann", "i", [("j", "ann")])
    quotas.check_group("bob", "acme%g", [])
    offsets.put(PutGroup(group="acme%g"))
    with pytest.raises(QuotaExceeded, match="namespace:acme"):
        quotas.check_group("bob", "acme%h", [])
    # Its settings change, its user does not.
    offsets.put(PutGroup(group="g", retries_max=5))
    assert (offsets.owner("g"), offsets.retries_max("g")) == ("ann", 5)


def test_streams_are_counted_also_those_that_began_before_the_quota() -> None:
    scene = Scene()
    quotas = scene.quotas
    with quotas.streaming("ann", "acme"):
        scene.put(Quota(subject="user:ann", streams=2))
        with quotas.streaming("ann", ""):
            with pytest.raises(QuotaExceeded, match="streams"), quotas.streaming("ann", ""):
                pass
            with quotas.streaming("bob", "acme"):
                pass
        with quotas.streaming("ann", ""):
            pass
    assert quotas._streams == {}


def test_many_users_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.security.quotas._SUBJECTS_MAX", 10)
    scene = Scene(Quota(subject="default", publish_bytes_per_s=1_000))
    scene.publish("owes", size=5_000)
    for number in range(100):
        scene.publish(f"user-{number}", size=1)
    assert len(scene.quotas._subjects) <= 10
    with pytest.raises(FlowControl):
        scene.publish("owes")
