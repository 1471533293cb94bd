"""Damage is listed once, counted, and bounded."""

from __future__ import annotations

from mq.store.damage import Damage, DamageKind, DamageLog


class Clock:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def at(position: int, *, path: str = "a.log", kind: DamageKind = DamageKind.LOG) -> Damage:
    return Damage(kind, path, position, "the checksum does not match")


def test_a_place_counts_once_while_it_is_open() -> None:
    clock = Clock()
    damage = DamageLog(clock)
    assert damage.found(at(40))
    clock.now_ms = 2_000
    assert not damage.found(at(40))
    assert damage.found_total[DamageKind.LOG] == damage.open_count(DamageKind.LOG) == 1
    (record,) = damage.records()
    assert (record.found_at_ms, record.is_open) == (1_000, True)


def test_affected_messages_may_be_named_later() -> None:
    damage = DamageLog(Clock())
    damage.found(at(40))
    damage.found(Damage(DamageKind.LOG, "a.log", 40, "", affected="orders/0: 5 to 9"))
    assert [one.affected for one in damage.records()] == ["orders/0: 5 to 9"]
    assert damage.records()[0].reason == "the checksum does not match"


def test_a_mended_file_is_closed_and_may_be_damaged_again() -> None:
    clock = Clock()
    damage = DamageLog(clock)
    for position in (40, 80):
        damage.found(at(position))
    damage.found(at(40, path="b.log"))
    assert damage.mended(DamageKind.LOG, "a.log", 80) == 1
    assert damage.mended(DamageKind.LOG, "a.log") == 1
    assert damage.mended(DamageKind.LOG, "a.log") == 0
    assert damage.mended(DamageKind.QUEUE, "b.log") == 0
    assert damage.open_count(DamageKind.LOG) == 1
    clock.now_ms = 3_000
    assert damage.found(at(40))
    assert damage.found_total[DamageKind.LOG] == 4
    assert damage.mended_total[DamageKind.LOG] == 2
    # It is the newest now.
    assert damage.records()[-1].found_at_ms == 3_000


def test_a_file_that_is_gone_has_no_damage() -> None:
    damage = DamageLog(Clock(), records_max=1)
    for position in (40, 80):
        damage.found(at(position))
    damage.dropped(DamageKind.LOG, "a.log")
    assert damage.open_count(DamageKind.LOG) == 0
    assert damage.mended_total[DamageKind.LOG] == 0


def test_the_list_is_bounded_and_the_counts_are_not() -> None:
    damage = DamageLog(Clock(), records_max=3)
    damage.found(at(0, path="mended"))
    damage.mended(DamageKind.LOG, "mended")
    for position in range(5):
        damage.found(at(position, kind=DamageKind.INDEX))
    assert [one.position for one in damage.records()] == [0, 1, 2]
    assert all(one.is_open for one in damage.records())
    assert damage.open_count(DamageKind.INDEX) == damage.found_total[DamageKind.INDEX] == 5
    assert damage.mended(DamageKind.INDEX, "a.log") == 5
    assert damage.open_count(DamageKind.INDEX) == 0
