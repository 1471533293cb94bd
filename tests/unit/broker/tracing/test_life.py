"""Every kind of life that the entries of a log can tell."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.queue import Queue
from mq.broker.state.state import State
from mq.broker.tracing import picture as pictures
from mq.broker.tracing.events import EventKind
from mq.broker.tracing.life import EVENTS_MAX
from mq.broker.tracing.picture import Picture
from mq.store.holding import lane_of
from mq.wire.v1 import state_pb2 as pb
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.message_pb2 import Half, Message
from tests.unit.broker.tracing.log_scene import Log, batch, kinds, leases, positions, standings

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
DUE_MS = 600_000_000


def empty() -> Picture:
    return pictures.of_state(1, State(), Queue("t", 0))


def lane(due_ms: int, log_offset: int) -> pb.LaneProgress:
    return pb.LaneProgress(lane=lane_of(due_ms), due_ms=due_ms, log_offset=log_offset)


def change(start: int, end: int, **fields: Any) -> pb.LeaseChange:
    return pb.LeaseChange(start=start, end=end, **fields)


# -- stored and passed -----------------------------------------------------------------------------


def test_a_message_is_born_stored_and_passed() -> None:
    log = Log()
    log.add(batch("t", b"other"))
    stored = log.add(batch("t", Message(body=b"m", born_at_ms=5)))
    log.add(**positions("early", 1))
    passed = log.add(**positions("g", 2))
    life = log.life(stored)
    assert kinds(life) == ["born", "stored", "passed"]
    born, at, by = life.events
    assert (born.at_ms, born.raft_index) == (5, 0)
    assert (at.copy.queue_offset, at.raft_index, at.term) == (1, 2, 3)
    assert (by.group, by.at_ms, by.raft_index) == ("g", passed.ref.stored_at_ms, 4)
    assert standings(life, empty()) == {"early": "not_reached", "g": "passed"}
    (early, _) = life.summaries(empty())
    assert (early.behind, early.position) == (1, -1)


def test_a_group_that_is_set_back_passes_it_again() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    for at in (1, 0, 1):
        log.add(**positions("g", at))
    assert kinds(log.life(stored)) == ["stored", "passed", "group_moved", "passed"]


@pytest.mark.parametrize("topic", [RETRY, DEAD])
def test_a_group_that_copied_it_before_it_passed_it_was_not_set_back(topic: str) -> None:
    log = Log()
    log.add(batch("t", b"other"))
    stored = log.add(batch("t", b"m"))
    log.add(batch(topic, log.copy(stored, 1, "no")))
    for at in (1, 2):
        log.add(**positions("g", at))
    assert "group_moved" not in kinds(log.life(stored))
    log.add(**positions("g", 0))
    assert kinds(log.life(stored))[-1] == "group_moved"


def test_deleting_groups_and_topics_is_told() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    log.add(**positions("g", 1))
    log.add(drop_group=pb.DropGroup(group="other"))
    log.add(drop_group=pb.DropGroup(group="g"))
    log.add(drop_topic=pb.DropTopic(topic="other"))
    log.add(drop_topic=pb.DropTopic(topic="t"))
    life = log.life(stored)
    assert kinds(life) == ["stored", "passed", "group_deleted", "topic_deleted"]
    assert life.is_over


def test_commands_that_are_one_atom_are_read_one_by_one() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    log.add(
        many=pb.Many(
            commands=[
                pb.Command(drop_group=pb.DropGroup(group="x")),
                pb.Command(**positions("g", 1)),
            ]
        )
    )
    assert kinds(log.life(stored)) == ["stored", "passed"]


# -- who -------------------------------------------------------------------------------------------


def test_senders_are_known_by_their_producer_id_or_run_by_run() -> None:
    log = Log()
    actors = [
        pb.Actor(number=1, user="alice", address="a:1", producer_id="p"),
        pb.Actor(number=2, user="bob"),
        pb.Actor(number=3, user="carol"),
    ]
    told = pb.Provenance(actors=actors, senders=[2, 2, 3, 1, 0, 1])
    plain = batch("t", *(Message(body=b"%d" % at, born_at_ms=1) for at in range(3)))
    numbered = batch("t", b"p", producer_id="p", sequence=1)
    entry = log.add(plain, numbered, batch("u", b"x"), provenance=told)
    later = log.add(batch("t", b"again", producer_id="p", sequence=2))
    by = [log.life(entry, 0, at).events[1].actor.user for at in range(3)]
    assert by == ["bob", "bob", "carol"]
    assert log.life(entry, 0, 2).events[0].actor.user == "carol"
    assert log.life(entry, 1).events[0].actor.user == "alice"
    assert log.life(entry, 2).events[0].actor.user == ""
    assert log.life(later).events[0].actor == log.life(entry, 1).events[0].actor
    # A number holds for its term.
    log.term = 4
    other = log.add(batch("t", b"y"), provenance=pb.Provenance(senders=[2, 1]))
    assert log.life(other).events[0].actor.user == ""


@pytest.mark.parametrize(
    ("filter_", "kind"),
    [
        ("TAG paid", "passed"),
        ("TAG open || sent", "skipped"),
        ("SQL amount > 100", "passed"),
        ("SQL amount > 1000", "skipped"),
        ("SQL ((", "passed"),
    ],
)
def test_a_member_passes_a_message_or_skips_it_by_its_filter(filter_: str, kind: str) -> None:
    log = Log()
    stored = log.add(batch("t", Message(body=b"m", tag="paid", properties={"amount": "120"})))
    filters = [pb.TopicFilter(topic="t", filter=filter_)]
    actor = pb.Actor(number=7, group="g", member_id="m", user="u", filters=filters)
    log.add(**positions("g", 1, actors=[7]), provenance=pb.Provenance(actors=[actor]))
    life = log.life(stored)
    assert kinds(life) == ["stored", kind]
    event = life.events[-1]
    assert (event.actor.member_id, event.actor.user) == ("m", "u")
    assert event.filter == (filter_ if kind == "skipped" else "")
    assert standings(life, empty()) == {"g": kind}


def test_the_member_of_an_ordered_group_is_known_by_its_lock() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    lock = pb.QueueLock(topic="t", queue_id=0, member_id="m")
    log.add(lock_queues=pb.LockQueues(group="g", locks=[lock]))
    log.add(**positions("g", 1))
    assert log.life(stored).events[-1].actor.member_id == "m"


def test_a_group_that_was_there_before_it_has_passed_it_whoever_it_was() -> None:
    log = Log()
    log.add(**positions("g", 0), provenance=pb.Provenance(actors=[pb.Actor(number=1)]))
    stored = log.add(batch("t", b"m"))
    log.add(**positions("g", 1))
    assert kinds(log.life(stored)) == ["stored", "passed"]


def test_a_group_that_begins_behind_it_has_not_passed_it() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"), provenance=pb.Provenance(actors=[pb.Actor(number=1)]))
    log.add(**positions("g", 1))
    log.add(**leases("r", change(0, 1, is_done=True)))
    life = log.life(stored)
    assert kinds(life) == ["stored", "began_behind", "began_behind"]
    assert standings(life, empty()) == {"g": "began_behind", "r": "began_behind"}


# -- retries ---------------------------------------------------------------------------------------


def delivered(log: Log, held: Any, *, has_sources: bool = True) -> Any:
    """The entry that delivers a held batch."""
    found, at = held.batches[0]
    sources = [at + found.region_start, found.message_count] if has_sources else []
    messages = [log.birth(held, 0, number).message for number in range(found.message_count)]
    command = pb.DeliverScheduled(lanes=[lane(found.deliver_at_ms, at)], sources=sources)
    return log.add(
        batch(found.topic, *messages, queue_id=found.queue_id),
        at_ms=found.deliver_at_ms,
        deliver_scheduled=command,
    )


@pytest.mark.parametrize("has_sources", [True, False])
def test_a_message_is_retried_and_given_up(has_sources: bool) -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    log.add(batch(RETRY, Message(body=b"x"), deliver_at_ms=DUE_MS))  # of another message
    held = log.add(
        batch(RETRY, log.copy(stored, 1, "no stock"), deliver_at_ms=DUE_MS), **positions("g", 1)
    )
    delivered(log, held, has_sources=has_sources)
    log.add(batch(RETRY, log.copy(stored, 2, "still none")))
    letter = batch(DEAD, log.copy(stored, 3, "never"))
    log.add(letter, **positions("g", 2, RETRY))
    life = log.life(stored)
    assert kinds(life) == ["stored", "retry", "redelivered", "retry", "dead_letter"]
    told = [(one.attempt, one.reason, one.until_ms) for one in life.events if one.reason]
    assert told == [(1, "no stock", DUE_MS), (2, "still none", 0), (3, "never", 0)]
    assert standings(life, empty()) == {"g": "dead_letter"}
    start = QueuePosition(topic=DEAD, queue_id=0, queue_offset=1)
    log.add(batch(RETRY, log.copy(stored, 0, "never")), trim_queues=pb.TrimQueues(starts=[start]))
    log.add(**positions("g", 3, RETRY))
    life = log.life(stored)
    assert kinds(life)[-2:] == ["resent", "passed"]
    assert standings(life, empty()) == {"g": "passed"}


@pytest.mark.parametrize(
    "command",
    [
        {"settle_letters": pb.SettleLetters(group="g", purged=[0])},
        {
            "trim_queues": pb.TrimQueues(
                starts=[QueuePosition(topic=DEAD, queue_id=0, queue_offset=1)]
            )
        },
    ],
)
def test_a_dead_letter_that_is_purged(command: dict[str, Any]) -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    log.add(batch(DEAD, log.copy(stored, 1, "no")))
    log.add(**command)
    assert kinds(log.life(stored)) == ["stored", "dead_letter", "purged"]


def test_copies_of_other_messages_are_not_its_own() -> None:
    log = Log()
    stored = log.add(batch("t", b"m", b"n"))
    other = log.add(batch("t", b"o"))
    log.add(batch(DEAD, log.copy(other, 1, f"as {log.id_of(stored)} before")))
    assert kinds(log.life(stored)) == ["stored"]


# -- delays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_sources", [True, False])
def test_a_delayed_message_is_carried_delivered_and_passed(has_sources: bool) -> None:
    log = Log()
    held = log.add(batch("t", b"a", b"b", deliver_at_ms=DUE_MS))
    found, at = held.batches[0]
    first_at = at + found.region_start
    again = log.add(
        batch("t", b"a", b"b", deliver_at_ms=DUE_MS, origin_log_offset=first_at),
        carry_scheduled=pb.CarryScheduled(lanes=[pb.LaneCarried(lane=lane_of(DUE_MS))]),
    )
    log.add(deliver_scheduled=pb.DeliverScheduled(lanes=[lane(DUE_MS, at)]))  # of others, before
    sources = [first_at + 1_000, 1, -1_000, 2] if has_sources else []
    deliver = pb.DeliverScheduled(lanes=[lane(DUE_MS, again.batches[0][1])], sources=sources)
    log.add(batch("t", b"x", b"a", b"b"), at_ms=DUE_MS + 5, deliver_scheduled=deliver)
    log.add(**positions("g", 3))
    life = log.life(held, 0, 1)
    assert kinds(life) == ["delayed", "carried", "delivered", "passed"]
    assert life.events[0].until_ms == DUE_MS
    assert life.events[2].copy.queue_offset == 2
    assert life.queue_offset == 2


def test_a_delayed_message_is_taken_back() -> None:
    log = Log()
    held = log.add(batch("t", b"a", b"b", deliver_at_ms=DUE_MS))
    found, at = held.batches[0]
    for number in (1, 0):
        command = pb.RecallScheduled(message_log_offset=at + int(found.frame_starts[number]))
        log.add(recall_scheduled=command)
    life = log.life(held)
    assert (kinds(life), life.is_over) == (["delayed", "recalled"], True)
    assert life.events[-1].raft_index == 3


def test_a_delayed_message_of_a_topic_that_is_gone_is_dropped() -> None:
    log = Log()
    held = log.add(batch("t", b"a", deliver_at_ms=DUE_MS))
    log.add(drop_topic=pb.DropTopic(topic="t"))
    progress = pb.DeliverScheduled(lanes=[lane(DUE_MS + 1, 0)])
    log.add(deliver_scheduled=progress)
    assert kinds(log.life(held)) == ["delayed", "topic_deleted", "dropped"]


# -- transactions ----------------------------------------------------------------------------------


def half(log: Log) -> tuple[Any, int]:
    terms = Half(producer_group="p", first_check_ms=1, check_interval_ms=1, checks_max=2)
    entry = log.add(batch("t", b"a", b"b", half=terms))
    found, at = entry.batches[0]
    return entry, at + found.region_start


def test_a_half_message_is_asked_about_and_committed() -> None:
    log = Log()
    entry, id_ = half(log)
    checked = [pb.TransactionChecked(id=id_, next_check_ms=77)]
    log.add(change_transactions=pb.ChangeTransactions(checked=checked))
    change_ = pb.ChangeTransactions(committed=[12, id_], rolled_back=[5])
    log.add(batch("t", b"other"), batch("t", b"a", b"b"), change_transactions=change_)
    log.add(**positions("g", 3))
    life = log.life(entry, 0, 1)
    assert kinds(life) == ["half", "checked", "committed", "passed"]
    assert (life.events[0].group, life.events[1].attempt, life.events[1].until_ms) == ("p", 1, 77)
    assert life.events[2].copy.queue_offset == 2


@pytest.mark.parametrize("outcome", ["rolled_back", "given_up"])
def test_a_half_message_that_never_becomes_visible(outcome: str) -> None:
    log = Log()
    entry, id_ = half(log)
    copies = [log.copy(entry, 0, "no word of p", body) for body in (b"a", b"b")]
    kept = [batch("%SYS%GIVE_UP", *copies)] if outcome == "given_up" else []
    ended: Any = {outcome: [id_]}
    log.add(*kept, change_transactions=pb.ChangeTransactions(**ended))
    life = log.life(entry)
    assert (kinds(life), life.is_over) == (["half", outcome], True)
    assert life.events[-1].reason == ("no word of p" if kept else "")


# -- receive and acknowledge -----------------------------------------------------------------------


def test_leases_are_told_from_the_grant_to_the_acknowledgement() -> None:
    log = Log()
    stored = log.add(batch("t", b"m", b"n"))
    actor = pb.Actor(number=4, group="g", member_id="m")
    first = change(0, 2, lease=1, visible_at_ms=5_000, attempts=1, actors=[4])
    log.add(**leases("g", first), provenance=pb.Provenance(actors=[actor]))
    longer = change(0, 1, lease=1, visible_at_ms=6_000, attempts=1)
    log.add(**leases("g", longer, next=2))
    back = change(0, 1, lease=0, visible_at_ms=6_500, attempts=1, reason="hot")
    log.add(**leases("g", back, next=2))
    again = change(0, 1, lease=2, visible_at_ms=9_000, attempts=2, actors=[4])
    log.add(**leases("g", again, next=2))
    expired = change(0, 1, lease=3, visible_at_ms=20_000, attempts=3)
    log.add(**leases("g", expired, next=2), at_ms=10_000)
    gone = change(0, 1, lease=0, visible_at_ms=10_100, attempts=2)
    log.add(**leases("g", gone, next=2))
    last = change(0, 1, lease=5, visible_at_ms=30_000, attempts=3)
    log.add(**leases("g", last, next=2))
    log.add(**leases("g", change(0, 1, is_done=True), next=9))  # moved meanwhile: nothing
    log.add(**leases("g", change(1, 2, is_done=True), next=2))  # its neighbour
    log.add(**leases("g", change(0, 1, is_done=True), next=2))
    life = log.life(stored)
    assert kinds(life)[1:] == [
        *("received", "extended", "nacked", "received", "lease_expired", "received"),
        *("returned", "received", "acknowledged"),
    ]
    assert [one.attempt for one in life.events[1:]] == [1, 1, 1, 2, 2, 3, 3, 3, 3]
    nacked, lost = life.events[3], life.events[5]
    assert (nacked.reason, nacked.actor.member_id) == ("hot", "m")
    assert (lost.at_ms, lost.raft_index) == (9_000, 0)
    assert standings(life, empty()) == {"g": "acknowledged"}


def test_members_that_share_a_lease_are_told_apart() -> None:
    log = Log()
    stored = log.add(batch("t", b"m", b"n"))
    actors = [pb.Actor(number=at, member_id=f"m{at}") for at in (1, 2)]
    granted = change(0, 2, lease=9, visible_at_ms=5_000, attempts=1, actors=[1, 2])
    log.add(**leases("g", granted), provenance=pb.Provenance(actors=actors))
    holders = [log.life(stored, 0, at).events[-1].actor.member_id for at in (0, 1)]
    assert holders == ["m1", "m2"]


def test_a_message_that_receivers_leave_out_or_put_off() -> None:
    log = Log()
    stored = log.add(batch("t", b"m", b"n"))
    filters = [pb.TopicFilter(topic="t", filter="TAG x")]
    actor = pb.Actor(number=1, group="g", member_id="m", filters=filters)
    told = pb.Provenance(actors=[actor])
    granted = change(1, 2, lease=2, visible_at_ms=5_000, attempts=1, actors=[1])
    log.add(**leases("g", change(0, 1, is_done=True), granted, next=0), provenance=told)
    log.add(**leases("o", change(0, 2, lease=0, visible_at_ms=0, attempts=0), next=0))
    life = log.life(stored)
    assert kinds(life) == ["stored", "skipped", "postponed"]
    assert life.events[1].filter == "TAG x"
    assert standings(life, empty()) == {"g": "skipped", "o": "waiting"}


def test_a_dead_letter_is_not_an_acknowledgement() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    log.add(**leases("g", change(0, 1, lease=2, visible_at_ms=5_000, attempts=1), next=0))
    letter = batch(DEAD, log.copy(stored, 1, "given out too often"))
    log.add(letter, **leases("g", change(0, 1, is_done=True), next=1))
    assert kinds(log.life(stored)) == ["stored", "received", "dead_letter"]


def test_a_life_without_an_end_is_cut() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    life = log.life(stored)
    forth, back = (log.add(**positions("g", at)) for at in (1, 0))
    for _ in range(EVENTS_MAX):
        life.feed(forth)
        life.feed(back)
    assert life.is_over
    assert str(EVENTS_MAX) in life.missing


# -- pictures --------------------------------------------------------------------------------------


def picture(**fields: Any) -> Picture:
    """A checkpoint's, with the topic `t`."""
    topics = [pb.TopicState(topic=pb.PutTopic(topic="t"))]
    topics += [
        pb.TopicState(topic=pb.PutTopic(topic=topic), stored_bytes=size)
        for topic, size in fields.pop("stored", {}).items()
    ]
    state = pb.BrokerState(topics=topics, counts_stored_bytes=True, **fields)
    return pictures.of_checkpoint(9, pb.BrokerState.FromString(state.SerializeToString()))


def group_at(queue_offset: int, group: str = "g") -> pb.GroupState:
    position = QueuePosition(topic="t", queue_id=0, queue_offset=queue_offset)
    return pb.GroupState(group=group, positions=[position])


def test_a_picture_tells_whether_something_has_happened() -> None:
    log = Log()
    stored = log.add(batch("t", b"m"))
    life = log.life(stored)
    untouched = [
        picture(),
        picture(groups=[group_at(0)]),
        picture(groups=[group_at(0, "other")]),
    ]
    touched = [
        picture(groups=[group_at(1)]),
        picture(groups=[group_at(0)], stored={RETRY: 10}),
        picture(groups=[group_at(0)], stored={DEAD: 10}),
        picture(stored={RETRY: 10}),
        pictures.of_checkpoint(9, pb.BrokerState()),
    ]
    assert [life.is_touched(one) for one in untouched] == [False] * 3
    assert [life.is_touched(one) for one in touched] == [True] * 5
    # What was read before counts no more.
    life.sync(picture(groups=[group_at(0)], stored={RETRY: 10}))
    assert not life.is_touched(picture(groups=[group_at(0)], stored={RETRY: 10}))
    assert life.is_touched(picture(groups=[group_at(0)], stored={RETRY: 11}))
    log.add(**positions("g", 1))
    assert not log.life(stored).is_touched(picture(groups=[group_at(1)], stored={RETRY: 11}))


def test_a_picture_tells_of_what_waits_and_of_transactions() -> None:
    log = Log()
    held = log.add(batch("t", b"a", deliver_at_ms=DUE_MS))
    found, at = held.batches[0]
    number, first = lane_of(DUE_MS), at + found.region_start
    lanes: dict[str, dict[str, Any]] = {
        "waits": {"due_ms": DUE_MS - 1, "log_offset": 5},
        "is delivered": {"due_ms": DUE_MS, "log_offset": at},
        "is carried": {"below_log_offset": at + 1},
        "is taken back": {"recalled": [first, DUE_MS]},
    }
    life = log.life(held)
    found_ = {
        what: life.is_touched(picture(lanes=[pb.LaneState(lane=number, batches=1, **fields)]))
        for what, fields in lanes.items()
    }
    assert found_ == {what: what != "waits" for what in lanes}
    assert life.is_touched(picture())
    entry, id_ = half(log)
    life = log.life(entry)
    opened = [pb.TransactionState(id=id_)]
    assert not life.is_touched(picture(transactions=opened))
    assert life.is_touched(picture(transactions=[pb.TransactionState(id=id_, checks=1)]))
    assert life.is_touched(picture())


def test_a_lease_in_a_picture_counts_by_what_it_says_of_the_message() -> None:
    log = Log()
    stored = log.add(batch("t", b"m", b"n"))
    log.add(**leases("g", change(0, 2, lease=7, visible_at_ms=5_000, attempts=1), next=0))
    life = log.life(stored)

    def leased(end: int, lease: int) -> Picture:
        data = b"".join(value.to_bytes(8, "little") for value in (0, end, lease, 5_000, 1))
        state = pb.LeaseState(group="g", topic="t", queue_id=0, next=2, ranges=data)
        return picture(groups=[group_at(0)], leases=[state])

    assert not life.is_touched(leased(2, 7))
    assert not life.is_touched(leased(1, 7))  # its neighbour is done
    assert life.is_touched(leased(2, 8))
    assert EventKind.RECEIVED in [one.kind for one in life.events]
