"""Administration of groups and their dead letters over all broker sets: each set coordinates a
group for its own queues, and keeps its own dead letters of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from mq.client.admin.calls import AdminCalls, Answers, check_counts
from mq.client.cluster.topology import in_several_sets
from mq.client.public import renamed
from mq.errors import GroupNotFound, IllegalRequest, TopicNotFound, UnknownMember
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.consumer_pb2 import (
    OFFSET_AT_TIME,
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    LeaveRequest,
)

OffsetTarget = Literal["earliest", "latest"] | int
LetterActionName = Literal["resend", "purge"]

_OFFSETS = {"earliest": OFFSET_EARLIEST, "latest": OFFSET_LATEST}
# The number that a broker lists by default.
_LETTERS = 32
_LEASES = 100
_LETTER_ACTIONS = {"resend": pb.LETTER_ACTION_RESEND, "purge": pb.LETTER_ACTION_PURGE}


class GroupAdmin(AdminCalls):
    async def list_groups(self) -> Answers[pb.GroupSummary]:
        """Lists the groups of all broker sets; a member of several sets counts once."""
        replies = await self._ask_all(pb.ListGroupsRequest())
        found: dict[str, list[pb.GroupSummary]] = {}
        for answer in replies.some().values():
            for one in answer.groups:
                found.setdefault(one.group, []).append(one)
        merged = [_merged_summary(found[name]) for name in sorted(found)]
        return Answers(merged, replies.missing)

    async def describe_group(self, group: str) -> pb.DescribeGroupResponse:
        """Describes a group with its queues in all broker sets. GroupNotFound."""
        request = pb.DescribeGroupRequest(group=group)
        replies = await self._ask_all(request, absent=GroupNotFound)
        found = list(replies.some().values())
        subscriptions = {one.topic: one for each in found for one in each.subscriptions}
        queues = [queue for each in found for queue in each.queues]
        queues.sort(key=lambda one: (one.topic, one.broker_set, one.queue_id))
        return pb.DescribeGroupResponse(
            summary=_merged_summary([each.summary for each in found]),
            subscriptions=[subscriptions[topic] for topic in sorted(subscriptions)],
            members=_merged_members([one for each in found for one in each.members]),
            queues=queues,
            missing_sets=replies.missing,
        )

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: OffsetTarget,
        queue_ids: Iterable[int] = (),
        *,
        dry_run: bool = False,
        broker_set: str = "",
    ) -> pb.ResetOffsetsResponse:
        """Moves a group to the earliest message, behind the latest, or to the first one stored at a
        time in ms or later; in one broker set, or in all that have the topic. Single queues need a
        set when several have the topic. The answer has the offsets before and after; with `dry_run`
        nothing is changed. GroupNotFound when no set knows the group.
        """
        request = pb.ResetOffsetsRequest(
            group=group, topic=topic, queue_ids=queue_ids, is_dry_run=True
        )
        request.kind = _OFFSETS.get(str(to), OFFSET_AT_TIME)
        if request.kind == OFFSET_AT_TIME:
            if not isinstance(to, int):
                raise IllegalRequest(f"to = {to!r}: use 'earliest', 'latest' or a time in ms")
            request.at_ms = to
        if broker_set:
            sets = [await self._known_set(broker_set)]
        else:
            sets = await self._sets_to_reset(topic, request.queue_ids)
            described = pb.DescribeGroupRequest(group=group)
            replies = await self._ask_all(described, absent=GroupNotFound)
            # If one set knows the group, the others may create it.
            request.may_be_new = bool(replies.some())
        replies = await self._ask_all(dict.fromkeys(sets, request), absent=TopicNotFound)
        found = replies.all()
        if not dry_run:
            request.is_dry_run = False
            found = await self._change_each(found, request, f"group {group} is reset")
        return pb.ResetOffsetsResponse(
            before=[one for each in found.values() for one in each.before],
            after=[one for each in found.values() for one in each.after],
        )

    async def _sets_to_reset(self, topic: str, queue_ids: Sequence[int]) -> list[str]:
        """All sets; with single queues the one that has the topic. IllegalRequest."""
        directory = await self._directory([topic] if queue_ids else [])
        having = [one.broker_set for one in directory.topics]
        if queue_ids and len(having) > 1:
            raise in_several_sets(topic, queue_ids[0], having)
        return having or [one.name for one in directory.broker_sets]

    async def evict_member(self, group: str, member_id: str, reason: str) -> None:
        """Sends a member away that lives and does nothing: in all broker sets its queues go to
        other members at once, also those of an ordered group, whatever its handler is doing. The
        consumer ends with PermissionDenied, which says the reason. UnknownMember: there is none.
        """
        if not reason:
            raise IllegalRequest("reason is empty: say why the member is sent away")
        replies = await self._ask_all(pb.DescribeGroupRequest(group=group), absent=GroupNotFound)
        found = replies.all()
        sets = [
            name
            for name, reply in found.items()
            if any(one.member_id == member_id for one in reply.members)
        ]
        if not sets:
            raise UnknownMember(f"group {group} has no member {member_id}")
        request = LeaveRequest(group=group, member_id=member_id, reason=reason)
        await self._change_each(sets, request, f"{member_id} is sent away from group {group}")

    async def delete_group(self, group: str) -> None:
        """Deletes a group in all broker sets. GroupNotEmpty while it has members in one."""
        request = pb.DescribeGroupRequest(group=group)
        replies = await self._ask_all(request, absent=GroupNotFound)
        found = replies.all()
        # Sets with members come first: they refuse, and nothing was changed then.
        sets = sorted(found, key=lambda name: -len(found[name].members))
        deletion, done = pb.DeleteGroupRequest(group=group), f"group {group} is deleted"
        await self._change_each(sets, deletion, done, absent=GroupNotFound)

    async def alter_group(
        self, group: str, *, retries_max: int | None = None, is_ordered: bool | None = None
    ) -> pb.GroupSettings:
        """Sets how often the group retries a message before it is a dead letter, in all broker
        sets; and whether its consumers of RocketMQ's protocol get the messages of an ordering key
        one at a time, in their order, which otherwise the type of the topic says. None leaves it as
        it is. Returns the settings that hold now.
        """
        check_counts(retries_max=retries_max)
        replies = await self._ask_all(pb.AlterGroupRequest(group=group))
        if retries_max is None and is_ordered is None:
            found = replies.some()
        else:
            request = pb.AlterGroupRequest(
                group=group, retries_max=retries_max, is_ordered=is_ordered
            )
            found = await self._change_each(replies.all(), request, f"group {group} is changed")
        # A set that was added later has the default.
        settings: pb.GroupSettings = min(found.values(), key=lambda one: one.is_default)
        settings.missing_sets[:] = replies.missing
        return settings

    async def list_leases(
        self, group: str, topic: str = "", max_leases: int = 0, *, page: str = ""
    ) -> pb.ListLeasesResponse:
        """Lists the messages that members of the group have received and not acknowledged, and
        those that wait to be received again, by topic and queue. Go on with `next_page` of the
        answer; the totals are of all. GroupNotFound.
        """
        check_counts(max_leases=max_leases)
        sets = await self._set_names()
        begin, _, at = page.partition("=")
        if page and (begin not in sets or not at):
            raise IllegalRequest(
                f"page = {page[:60]!r} is none: give `next_page` of the answer before, or leave it "
                "out"
            )
        requests = {
            name: pb.ListLeasesRequest(
                group=group, topic=topic, leases_max=max_leases, page=at if name == begin else ""
            )
            for name in sets
        }
        replies = await self._ask_all(requests, absent=GroupNotFound)
        answer = pb.ListLeasesResponse(missing_sets=replies.missing)
        room = max_leases or _LEASES
        # One set after the other.
        for name, found in replies.some().items():
            answer.leased += found.leased
            answer.waiting += found.waiting
            if (begin and sets.index(name) < sets.index(begin)) or answer.next_page:
                continue
            leases = found.leases[: room - len(answer.leases)]
            answer.leases.extend(leases)
            if len(leases) < len(found.leases):
                left = found.leases[len(leases)]
                answer.next_page = f"{name}={left.topic}/{left.queue_id}/{left.start}"
            elif found.next_page:
                answer.next_page = f"{name}={found.next_page}"
        return answer

    # Dead letters

    async def count_dead_letters(self) -> Answers[pb.DeadLetterCount]:
        """Counts the dead letters of every group that has some, in all broker sets."""
        replies = await self._ask_all(pb.ListDeadLettersRequest())
        found: dict[str, pb.DeadLetterCount] = {}
        for answer in replies.some().values():
            for one in answer.groups:
                total = found.setdefault(one.group, pb.DeadLetterCount(group=one.group))
                total.messages += one.messages
                total.last_stored_at_ms = max(total.last_stored_at_ms, one.last_stored_at_ms)
                total.broker_sets.extend(one.broker_sets)
        return Answers([found[name] for name in sorted(found)], replies.missing)

    @renamed(messages_max="max_messages")
    async def list_dead_letters(
        self,
        group: str,
        queue_offset: int | Mapping[str, int] = 0,
        max_messages: int = 0,
        *,
        broker_set: str = "",
    ) -> pb.ListDeadLettersResponse:
        """Lists dead letters of all broker sets, the oldest first, or of one. Each set counts its
        own: go on at `next_offsets` of the answer; with one set `next_offset` is enough.
        TopicNotFound when the group never had one.
        """
        if not group:
            raise IllegalRequest("whose dead letters? name a group")
        known = await self._set_names()
        sets = [await self._known_set(broker_set, known)] if broker_set else known
        places = _places(queue_offset, sets)
        is_one_place = isinstance(queue_offset, int) and queue_offset > 0
        requests = {
            name: pb.ListDeadLettersRequest(group=group, queue_offset=at, messages_max=max_messages)
            for name, at in places.items()
        }
        replies = await self._ask_all(requests, absent=TopicNotFound)
        found = replies.some()
        if is_one_place:
            _check_one(group, found)
        return _merged_letters(found, places, max_messages, replies.missing)

    async def resend_dead_letters(
        self, group: str, queue_offsets: Iterable[int] = (), *, broker_set: str = ""
    ) -> int:
        """Sends dead letters to the group again, with their attempts counted from 0, and returns
        how many: single ones, which stay in the list, or all, which leave it. Single ones need a
        broker set when several have dead letters of the group. MessageNotFound.
        """
        request = pb.ResendDeadLettersRequest(group=group, queue_offsets=queue_offsets)
        sets = await self._sets_with_letters(
            group, broker_set, is_single=bool(request.queue_offsets)
        )
        answers = await self._change_each(sets, request, "they are sent again")
        return sum(one.messages for one in answers.values())

    async def purge_dead_letters(
        self, group: str, before_offset: int = 0, *, broker_set: str = ""
    ) -> int:
        """Deletes the dead letters before this queue offset, or all (0), and returns how many. An
        offset needs a broker set when several have dead letters of the group.
        """
        check_counts(before_offset=before_offset)
        request = pb.PurgeDeadLettersRequest(group=group, before_offset=before_offset)
        sets = await self._sets_with_letters(group, broker_set, is_single=before_offset > 0)
        answers = await self._change_each(sets, request, "they are gone")
        return sum(one.messages for one in answers.values())

    async def settle_dead_letters(
        self,
        group: str,
        queue_offsets: Iterable[int],
        action: LetterActionName,
        *,
        again: bool = False,
        broker_set: str = "",
    ) -> list[pb.LetterOutcome]:
        """Resends or purges chosen dead letters, and returns what became of each, in the order of
        their offsets: what fails for one stops no other. A letter that was resent stays in the
        list, and is resent another time only with `again`. A broker set is needed when several have
        dead letters of the group. TopicNotFound when the group never had one.
        """
        if action not in _LETTER_ACTIONS:
            raise IllegalRequest(f"action = {action!r}: use 'resend' or 'purge'")
        request = pb.SettleDeadLettersRequest(
            group=group, queue_offsets=queue_offsets, action=_LETTER_ACTIONS[action], again=again
        )
        (name,) = await self._sets_with_letters(group, broker_set, is_single=True)
        answer: pb.SettleDeadLettersResponse = await self._ask(name, request)
        return list(answer.outcomes)

    async def _sets_with_letters(
        self, group: str, broker_set: str, *, is_single: bool
    ) -> list[str]:
        """IllegalRequest for a single dead letter when several sets have some. TopicNotFound."""
        if broker_set:
            return [await self._known_set(broker_set)]
        if not group:
            raise IllegalRequest("whose dead letters? name a group")
        request = pb.ListDeadLettersRequest(group=group, messages_max=1)
        replies = await self._ask_all(request, absent=TopicNotFound)
        found = replies.all()
        if is_single:
            _check_one(group, found)
        return list(found)


def _places(queue_offset: int | Mapping[str, int], sets: Sequence[str]) -> dict[str, int]:
    """The offset to begin at in each set. IllegalRequest."""
    if isinstance(queue_offset, int):
        check_counts(queue_offset=queue_offset)
        return dict.fromkeys(sets, queue_offset)
    for number in queue_offset.values():
        check_counts(queue_offset=number)
    return {name: queue_offset.get(name, 0) for name in sets}


def _check_one(group: str, sets: Iterable[str]) -> None:
    """IllegalRequest: a queue offset is one of a single set."""
    names = list(sets)
    if len(names) > 1:
        raise IllegalRequest(
            f"group {group} has dead letters in {', '.join(names)}, and each broker set counts its "
            "own: say which one (--set)"
        )


def _merged_letters(
    found: Mapping[str, Any], places: Mapping[str, int], max_messages: int, missing: Iterable[str]
) -> pb.ListDeadLettersResponse:
    """The oldest of all sets; `next_offsets` points at the first ones that are left out."""
    if len(found) == 1:
        (only,) = found.values()
        answer = pb.ListDeadLettersResponse()
        answer.CopyFrom(only)
    else:
        in_order = heapq.merge(
            *(
                [(one.stored_at_ms, name, one) for one in each.messages]
                for name, each in found.items()
            ),
            key=lambda one: one[:2],
        )
        answer = pb.ListDeadLettersResponse(
            # Below, a page that is cut short goes on at its first message that is left out.
            next_offsets={
                name: places[name] if each.messages else each.next_offset
                for name, each in found.items()
            }
        )
        for _, name, letter in in_order:
            if len(answer.messages) == (max_messages or _LETTERS):
                break
            answer.messages.append(letter)
            answer.next_offsets[name] = letter.queue_offset + 1
        resent = {one for each in found.values() for one in each.resent_ids}
        shown = [one.message_id for one in answer.messages]
        answer.resent_ids.extend(one for one in shown if one in resent)
    answer.missing_sets[:] = missing
    return answer


def _merged_summary(parts: Sequence[pb.GroupSummary]) -> pb.GroupSummary:
    if len(parts) == 1:
        return parts[0]
    member_ids = sorted({member_id for one in parts for member_id in one.member_ids})
    # A set without members of the group does not know its mode.
    mode = max(parts, key=lambda one: bool(one.members)).mode
    return pb.GroupSummary(
        group=parts[0].group,
        mode=mode,
        members=len(member_ids),
        generation=max(one.generation for one in parts),
        lag=sum(one.lag for one in parts),
        topics=sorted({topic for one in parts for topic in one.topics}),
        member_ids=member_ids,
    )


def _merged_members(members: Iterable[pb.MemberInfo]) -> list[pb.MemberInfo]:
    """Members by id: one that is in several sets is one row."""
    found: dict[tuple[str, bool], pb.MemberInfo] = {}
    for one in members:
        key = one.member_id, one.is_receiving
        known = found.get(key)
        if known is None:
            found[key] = one
            continue
        known.queues += one.queues
        known.last_seen_at_ms = max(known.last_seen_at_ms, one.last_seen_at_ms)
        known.is_streaming = known.is_streaming or one.is_streaming
        known.broker_sets.extend(one.broker_sets)
    return [found[key] for key in sorted(found, key=lambda one: (one[1], one[0]))]
