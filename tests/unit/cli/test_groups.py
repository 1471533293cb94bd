"""`mq group`: what it asks the broker, what it shows, and when it asks the user."""

from __future__ import annotations

import pytest

from mq.cli.groups import group
from mq.errors import GroupNotEmpty, GroupNotFound
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.consumer_pb2 import MODE_ORDERED, Filter, QueuePosition, Subscription
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

SETTINGS = pb.GroupSettings(group="billing", retries_max=16, is_default=True)


def summary(name: str = "billing", **fields: object) -> pb.GroupSummary:
    given = {"members": 2, "lag": 1_503, "topics": ["orders", "returns"], "mode": MODE_ORDERED}
    return pb.GroupSummary(group=name, generation=3, **{**given, **fields})  # type: ignore[arg-type]


def described() -> pb.DescribeGroupResponse:
    return pb.DescribeGroupResponse(
        summary=summary(),
        subscriptions=[
            Subscription(topic="orders", filter=Filter(tags="a || b")),
            Subscription(topic="returns", filter=Filter(sql="x = '\x1b'")),
            Subscription(topic="rest", filter=Filter(tags="*")),
        ],
        members=[
            pb.MemberInfo(
                member_id="host-4711-0123456789ab",
                address="ipv4:10.20.30.40:56789",
                last_seen_at_ms=1_783_850_000_123,
                is_streaming=True,
                queues=4,
            ),
            pb.MemberInfo(member_id="evil\x1b[2J", zone="eu"),
        ],
        queues=[
            pb.GroupQueue(topic="orders", queue_id=0, committed=500, end=1704, lag=1204),
            pb.GroupQueue(
                topic="orders", queue_id=1, committed=-1, end=299, lag=299, member_id="m"
            ),
            pb.GroupQueue(topic="orders", queue_id=2, committed=0, end=0),
        ],
    )


@pytest.mark.parametrize("columns", [70, 80, 140])
def test_the_list_fits_the_terminal(columns: int) -> None:
    groups = [summary(), summary("g" * 127, topics=[], lag=1 << 40)]
    result = run(group, "list", admin=FakeAdmin(list_groups=groups), columns=columns)
    assert_fits(result.stdout, columns)
    assert f"{1 << 40:,}" in result.stdout
    assert "2 groups, " in result.stdout


def test_an_empty_list_says_how_to_begin() -> None:
    assert "mq consume" in run(group, "list", admin=FakeAdmin(list_groups=[])).stdout


def test_the_list_as_json() -> None:
    (found,) = run_json(group, "list", admin=FakeAdmin(list_groups=[summary()]))
    assert (found["group"], found["mode"], found["lag"]) == ("billing", "ordered", 1503)


@pytest.mark.parametrize("columns", [80, 140])
def test_a_description_has_filters_members_and_lag(columns: int) -> None:
    admin = FakeAdmin(describe_group=described(), alter_group=SETTINGS)
    text = run(group, "describe", "billing", admin=admin, columns=columns).stdout
    assert "16 times, by default" in text
    assert_fits(text, columns)
    for part in ("orders (tags a || b)", "rest (all)", "ordered, generation 3"):
        assert part in text
    rows = [line.split() for line in text.splitlines()]
    assert ["orders", "0", "0", "500", "1704", "1,204", "-"] in rows
    assert ["orders", "1", "0", "none", "299", "299", "m"] in rows
    assert ["orders", "2", "0", "0", "0", "0", "-"] in rows
    assert "host-4711-0123456789ab" in text
    assert "\x1b" not in text
    assert "evil\\x1b[2J" in text


@pytest.mark.parametrize("stalled_ms", [9_999, 1_234_567])
def test_a_description_shows_a_member_that_makes_no_progress(stalled_ms: int) -> None:
    found = described()
    found.members[0].stalled_ms = stalled_ms
    admin = FakeAdmin(describe_group=found, alter_group=SETTINGS)
    text = run(group, "describe", "billing", admin=admin).stdout
    assert ("stalled" in text) == ("1,234 s" in text) == (stalled_ms > 10_000)


def test_a_group_without_members_says_so() -> None:
    found = pb.DescribeGroupResponse(summary=summary(members=0))
    admin = FakeAdmin(describe_group=found, alter_group=pb.GroupSettings(retries_max=1))
    text = run(group, "describe", "billing", admin=admin).stdout
    assert "retries     once " in text
    assert "No members." in text
    assert "to orders, returns when last seen" in text


def test_a_description_as_json_has_the_settings() -> None:
    admin = FakeAdmin(describe_group=described(), alter_group=SETTINGS)
    found = run_json(group, "describe", "billing", admin=admin)
    settings = {"group": "billing", "retries_max": 16, "is_default": True, "missing_sets": []}
    assert found["settings"] == settings
    assert admin.called("alter_group") == [(("billing",), {})]


def test_retries_are_set() -> None:
    admin = FakeAdmin(alter_group=pb.GroupSettings(group="billing", retries_max=3))
    result = run(group, "set", "billing", "--retries", "3", admin=admin)
    assert result.stdout == "Group billing retries a message 3 times.\n"
    assert run_json(group, "set", "billing", "--retries", "3", admin=admin)["retries_max"] == 3
    assert (
        admin.called("alter_group") == [(("billing",), {"retries_max": 3, "is_ordered": None})] * 2
    )
    for wrong in (("--retries", "-1"), ("--retries", "1001"), ()):
        assert run(group, "set", "billing", *wrong, admin=admin).exit_code == 2


def test_the_order_for_clients_of_rocketmq_is_set() -> None:
    admin = FakeAdmin(alter_group=pb.GroupSettings(group="billing", is_ordered=True))
    result = run(group, "set", "billing", "--ordered", admin=admin)
    assert "RocketMQ's clients get its messages in order.\n" in result.stdout
    run(group, "set", "billing", "--any-order", admin=admin)
    assert [one["is_ordered"] for _, one in admin.called("alter_group")] == [True, False]


# Offsets.

BEFORE = [QueuePosition(topic="orders", queue_id=0, queue_offset=500)]
AFTER = [
    QueuePosition(topic="orders", queue_id=0, queue_offset=1704),
    QueuePosition(topic="orders", queue_id=1, queue_offset=299),
]


def test_reset_shows_before_and_after() -> None:
    admin = FakeAdmin(reset_offsets=pb.ResetOffsetsResponse(before=BEFORE, after=AFTER))
    flags = ("--topic", "orders", "--to", "latest")
    result = run(group, "reset", "billing", *flags, "--force", admin=admin)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["orders", "0", "500", "1704", "+1,204"] in rows
    assert ["orders", "1", "none", "299", "new"] in rows
    assert "goes on from there in 2 queues" in result.stdout
    expected = {"to": "latest", "queue_ids": (), "dry_run": False, "broker_set": ""}
    assert admin.calls == [("reset_offsets", ("billing", "orders"), expected)]


def resetting(members: int) -> FakeAdmin:
    """Back by 1,204 messages in one queue, forth by 9 in another."""
    there, here = 1704, 500
    before = [QueuePosition(topic="orders", queue_id=at, queue_offset=there) for at in range(2)]
    after = [
        QueuePosition(topic="orders", queue_id=0, queue_offset=here),
        QueuePosition(topic="orders", queue_id=1, queue_offset=there + 9),
        QueuePosition(topic="orders", queue_id=2, queue_offset=77),
    ]
    found = pb.DescribeGroupResponse(
        # A member is in every set.
        members=[pb.MemberInfo(member_id=f"m{at % members}") for at in range(2 * members)]
    )
    answer = pb.ResetOffsetsResponse(before=before, after=after)
    return FakeAdmin(reset_offsets=answer, describe_group=found)


RESET = ("reset", "billing", "--topic", "orders", "--to", "-10m")


def test_reset_while_members_consume_needs_force() -> None:
    admin = resetting(2)
    result = run(group, *RESET, "--yes", admin=admin)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: GROUP_NOT_EMPTY: 2 members of group billing are consuming and would go on from "
        "there at once: 1,204 messages of orders would come again, 9 would be left out. "
        "Nothing was changed: stop them first, or give --force\n"
    )
    assert [given["dry_run"] for _, given in admin.called("reset_offsets")] == [True]
    assert run(group, *RESET, "--force", admin=admin).exit_code == 0
    assert [given["dry_run"] for _, given in admin.called("reset_offsets")] == [True, False]


def test_reset_of_a_group_without_members_and_a_dry_run_need_no_force() -> None:
    admin = resetting(0)
    assert run(group, *RESET, admin=admin).exit_code == 0
    assert [given["dry_run"] for _, given in admin.called("reset_offsets")] == [True, False]
    assert run(group, *RESET, "--dry-run", admin=resetting(3)).exit_code == 0


def test_a_dry_run_says_that_nothing_was_changed() -> None:
    admin = FakeAdmin(reset_offsets=pb.ResetOffsetsResponse(before=BEFORE, after=AFTER))
    flags = (
        "--topic",
        "orders",
        "--to",
        "1000",
        "--queue",
        "0",
        "--queue",
        "3",
        "--dry-run",
        "--set",
        "b",
    )
    result = run(group, "reset", "billing", *flags, admin=admin)
    assert "Nothing was changed" in result.stdout
    expected = {"to": 1000, "queue_ids": (0, 3), "dry_run": True, "broker_set": "b"}
    assert admin.calls == [("reset_offsets", ("billing", "orders"), expected)]
    document = run_json(group, "reset", "billing", *flags, admin=admin)
    assert document["is_dry_run"] is True
    assert document["after"][0]["queue_offset"] == 1704


def test_the_same_queue_of_two_sets_is_two_rows() -> None:
    after = [
        QueuePosition(topic="orders", queue_id=0, queue_offset=at, broker_set=name)
        for name, at in (("a", 7), ("b", 9))
    ]
    found = pb.ResetOffsetsResponse(before=after[:1], after=after)
    flags = ("--topic", "orders", "--to", "latest")
    admin = FakeAdmin(reset_offsets=found)
    result = run(group, "reset", "billing", *flags, "--force", admin=admin)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["orders", "a", "0", "7", "7", "+0"] in rows
    assert ["orders", "b", "0", "none", "9", "new"] in rows


@pytest.mark.parametrize("columns", [80, 140])
def test_a_description_of_several_sets_fits(columns: int) -> None:
    found = described()
    for queue, name in zip(found.queues, ("set-0", "set-0", "another-set"), strict=True):
        queue.broker_set = name
    admin = FakeAdmin(describe_group=found, alter_group=SETTINGS)
    text = run(group, "describe", "billing", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    assert "another-set" in text


def test_a_list_without_an_unreachable_set_is_shown_and_the_command_fails() -> None:
    found = described()
    found.missing_sets.append("b")
    admin = FakeAdmin(describe_group=found, alter_group=SETTINGS)
    result = run(group, "describe", "billing", admin=admin)
    assert result.exit_code == 1
    assert "1,204" in result.stdout
    assert result.stderr.startswith("error: UNREACHABLE: broker set b did not answer")


@pytest.mark.parametrize(
    "flags", [("--topic", "orders"), ("--to", "latest"), ("--topic", "orders", "--to", "soon")]
)
def test_reset_needs_a_topic_and_a_place(flags: tuple[str, ...]) -> None:
    admin = FakeAdmin()
    assert run(group, "reset", "billing", *flags, admin=admin).exit_code == 2
    assert admin.calls == []


# Deleting.


def test_delete_asks_unless_yes_is_given() -> None:
    admin = FakeAdmin(describe_group=described(), delete_group=None)
    assert run(group, "delete", "billing", admin=admin, stdin="n\n").exit_code == 1
    assert admin.called("delete_group") == []
    assert run(group, "delete", "billing", "--yes", admin=admin).exit_code == 0
    assert run_json(group, "delete", "billing", "--yes", admin=admin)["is_deleted"] is True
    assert admin.called("delete_group") == [(("billing",), {})] * 2


def test_a_group_with_members_is_refused_in_one_line() -> None:
    admin = FakeAdmin(delete_group=GroupNotEmpty("group billing has 2 members: stop them first"))
    result = run(group, "delete", "billing", "--yes", admin=admin)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: GROUP_NOT_EMPTY: group billing has 2 members")


def test_a_group_that_does_not_exist_is_guessed() -> None:
    groups = [pb.GroupSummary(group="billing"), pb.GroupSummary(group="audit")]
    missing = GroupNotFound("there is no group biling")
    admin = FakeAdmin(describe_group=missing, reset_offsets=missing, list_groups=groups)
    for arguments in (
        ("describe", "biling"),
        ("delete", "biling"),
        ("reset", "biling", *RESET[2:]),
    ):
        result = run(group, *arguments, admin=admin)
        assert result.exit_code == 1
        text = "error: GROUP_NOT_FOUND: there is no group biling: did you mean billing?\n"
        assert result.stderr == text
    result = run(group, "describe", "zzz", admin=admin)
    assert result.stderr == "error: GROUP_NOT_FOUND: there is no group biling\n"
