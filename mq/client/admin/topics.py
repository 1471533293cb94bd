"""Administration of topics over all broker sets: each set has its own part of a topic, whose queues
it counts from 0.

The leaders of the sets are asked which parts there are. The directory may be a second old: it only
tells which sets must answer. A topic is spread over the sets when it is created; later an operator
adds, drains and removes parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mq import names
from mq.client.admin.calls import (
    AdminCalls,
    Answers,
    Replies,
    check_counts,
    merged_info,
    partly_done,
)
from mq.client.cluster.errors import reworded
from mq.client.cluster.retry import now_s
from mq.errors import (
    GroupNotFound,
    IllegalRequest,
    MqError,
    NotLeader,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import (
    TOPIC_DELAYED,
    TOPIC_NORMAL,
    TOPIC_ORDERED,
    TOPIC_TRANSACTIONAL,
    RouteRequest,
    RouteResponse,
    TopicType,
)
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST

TypeName = Literal["normal", "ordered", "delayed", "transactional"]

_TYPES: dict[str, TopicType] = {
    "normal": TOPIC_NORMAL,
    "ordered": TOPIC_ORDERED,
    "delayed": TOPIC_DELAYED,
    "transactional": TOPIC_TRANSACTIONAL,
}
# Of a topic that is created without a number of queues, in all broker sets together.
_DEFAULT_QUEUES = 8
_LOOK_AGAIN_S = 0.05
_ROUTE_S = 1.0
_TRANSACTIONS_MAX = 1_000


class TopicAdmin(AdminCalls):
    async def create_topic(
        self,
        topic: str,
        queues: int = 0,
        type: TypeName = "normal",  # noqa: A002
        *,
        priorities: int = 0,
        sets: Sequence[str] | None = None,
    ) -> pb.TopicInfo:
        """Spreads the queues evenly over all broker sets, or over `sets`. 0 queues: 8 in all, or
        the default of the broker in a cluster of one set. `priorities`: 2 to 10, or 0 for none;
        each set has queues of all of them.

        Returns when brokers show the whole topic to clients. TopicExists when a set has it. A call
        that failed after some sets had created their part is completed by the same call again.
        """
        if type not in _TYPES:
            raise IllegalRequest(f"type {type!r} of topic {topic}: use one of {', '.join(_TYPES)}")
        check_counts(queues=queues, priorities=priorities)
        names.check_topic(topic)
        known = await self._set_names()
        chosen = [await self._known_set(one, known) for one in dict.fromkeys(sets or known)]
        wanted = pb.CreateTopicRequest(
            topic=topic, queues=queues, type=_TYPES[type], priorities=priorities
        )
        if len(known) == 1:
            answer: pb.TopicInfo = await self._ask(known[0], wanted)
            return answer
        replies = await self._parts_of(topic, chosen)
        if replies.missing:
            replies.all()  # raises: a set that may have a part does not answer
        there = {name: one.info for name, one in replies.found.items()}
        wanted.queues = queues or max(_DEFAULT_QUEUES, priorities)
        plan = await self._plan(wanted, chosen, there)
        for name, count in plan.items():
            try:
                there[name] = await self._create_part(name, wanted, count)
            except MqError as error:
                if there:
                    raise partly_done(error, name, f"topic {topic} is", there) from None
                raise
        await self._until_shown(topic, there)
        return merged_info([there[name] for name in sorted(there)])

    async def extend_topic(self, topic: str, broker_set: str, queues: int) -> pb.TopicInfo:
        """Gives the topic so many queues in this set, of the type that it has elsewhere: a first
        part there, or more queues than before. Returns the part in this set when brokers show it to
        clients.
        """
        check_counts(queues=queues)
        replies = await self._parts_of(topic, [broker_set])
        parts = {name: one.info for name, one in replies.found.items()}
        if broker_set in replies.missing or not parts:
            replies.all()
        there = parts.get(broker_set)
        if there is None:
            like = next(iter(parts.values()))
            wanted = pb.CreateTopicRequest(topic=topic, type=like.type, priorities=like.priorities)
            info = await self._create_part(broker_set, wanted, queues)
        else:
            _check_grows(there, queues)
            request = pb.AlterTopicRequest(topic=topic, write_queues=queues, read_queues=queues)
            info = await self._ask(broker_set, request)
        await self._until_shown(topic, parts | {broker_set: info})
        return info

    async def alter_topic(
        self,
        topic: str,
        *,
        write_queues: int | None = None,
        read_queues: int | None = None,
        is_readable: bool | None = None,
        is_writable: bool | None = None,
        broker_set: str = "",
    ) -> pb.TopicInfo:
        """Changes the topic in one broker set, or in all that have it; None leaves a value alone.
        Numbers of queues need `broker_set` when several sets have the topic, since each set counts
        its own. To shrink without loss lower `write_queues`, let consumers finish, then lower
        `read_queues`.
        """
        check_counts(write_queues=write_queues, read_queues=read_queues)
        replies = await self._parts_of(topic, [broker_set] if broker_set else [])
        sets = [broker_set] if broker_set else list(replies.all())
        if broker_set:
            _part(replies, topic, broker_set)
        if len(sets) > 1 and (write_queues is not None or read_queues is not None):
            raise IllegalRequest(
                f"topic {topic} has queues in {', '.join(sets)}, and each broker set counts its "
                "own: say in which one to change them (--set)"
            )
        request = pb.AlterTopicRequest(
            topic=topic,
            write_queues=write_queues,
            read_queues=read_queues,
            is_readable=is_readable,
            is_writable=is_writable,
        )
        answers = await self._change_each(sets, request, f"topic {topic} is changed")
        return merged_info(list(answers.values()))

    async def drain_topic(self, topic: str, broker_set: str) -> pb.TopicInfo:
        """Stops writes to the topic in this set; consumers empty it there, then `remove_part`.
        IllegalRequest when no other set takes messages of the topic.
        """
        replies = await self._parts_of(topic, [broker_set])
        part = _part(replies, topic, broker_set)
        others = [one for name, one in replies.found.items() if name != broker_set]
        if part.info.is_writable and not any(one.info.is_writable for one in others):
            replies.all()
            raise IllegalRequest(
                f"topic {topic} takes messages in no other broker set than {broker_set}: extend it "
                "to another one first"
            )
        request = pb.AlterTopicRequest(topic=topic, is_writable=False)
        answer: pb.TopicInfo = await self._ask(broker_set, request)
        return answer

    async def remove_part(self, topic: str, broker_set: str, *, force: bool = False) -> None:
        """Deletes the queues that the topic has in this set, with their messages. IllegalRequest,
        with numbers, if the part is not drained and consumed, unless `force`; and if no other set
        has the topic.
        """
        replies = await self._parts_of(topic, [broker_set])
        part = _part(replies, topic, broker_set)
        if len(replies.all()) == 1:
            raise IllegalRequest(
                f"only broker set {broker_set} has topic {topic}: delete the topic, or extend it "
                "to another set first"
            )
        if not force:
            reasons = await self._why_kept(topic, broker_set, part)
            if reasons:
                raise IllegalRequest(
                    f"topic {topic} in broker set {broker_set}: {'; '.join(reasons)}; "
                    "it is removed all the same by force (--force)"
                )
        request = pb.DeleteTopicRequest(topic=topic)
        await self._change_each([broker_set], request, "", absent=TopicNotFound)

    async def delete_topic(self, topic: str) -> None:
        """Deletes the topic in all broker sets. Its messages are gone at once."""
        sets = (await self._parts_of(topic)).all()
        request = pb.DeleteTopicRequest(topic=topic)
        done = f"topic {topic} is deleted"
        await self._change_each(sets, request, done, absent=TopicNotFound)

    async def list_topics(self, *, include_internal: bool = False) -> Answers[pb.TopicSummary]:
        """Lists the topics of all broker sets."""
        request = pb.ListTopicsRequest(include_internal=include_internal)
        replies = await self._ask_all(request)
        found: dict[str, list[pb.TopicSummary]] = {}
        for answer in replies.some().values():
            for one in answer.topics:
                found.setdefault(one.info.topic, []).append(one)
        merged = [_merged_summary(found[name]) for name in sorted(found)]
        return Answers(merged, replies.missing)

    async def describe_topic(self, topic: str) -> pb.DescribeTopicResponse:
        """Describes a topic with its queues in all broker sets. TopicNotFound."""
        replies = await self._parts_of(topic)
        found = list(replies.some().values())
        parts = [one.info for one in found]
        return pb.DescribeTopicResponse(
            info=merged_info(parts),
            queues=[queue for one in found for queue in one.queues],
            groups=sorted({group for one in found for group in one.groups}),
            parts=parts,
            missing_sets=replies.missing,
        )

    # Parts of a topic

    async def _parts_of(self, topic: str, needed: Sequence[str] = ()) -> Replies:
        """The part of each set. A set that does not answer counts as missing if the directory says
        that it has a part, or if it is needed. IllegalRequest: the cluster has no such set.
        """
        # A route of a topic leaves out sets whose topics the broker does not know.
        sets = await self._set_names()
        for name in needed:
            await self._known_set(name, sets)
        expected = {*needed, *(one.broker_set for one in (await self._directory([topic])).topics)}
        request = pb.DescribeTopicRequest(topic=topic)
        replies = await self._ask_all(
            dict.fromkeys(sets, request),
            absent=TopicNotFound,
            unexpected=() if len(sets) == 1 else set(sets) - expected,
        )
        if replies.found or replies.absent:
            for name in [one for one in replies.missing if one not in expected]:
                del replies.missing[name]
        return replies

    async def _plan(
        self,
        wanted: pb.CreateTopicRequest,
        chosen: Sequence[str],
        there: Mapping[str, pb.TopicInfo],
    ) -> dict[str, int]:
        """By set: the number of queues to create. Raises TopicExists."""
        least = max(1, wanted.priorities)
        loads = dict.fromkeys(chosen, 0)
        if needs_loads(wanted.queues, len(chosen), least):
            request = pb.ListTopicsRequest()
            answers = (await self._ask_all(dict.fromkeys(chosen, request))).all()
            for name, answer in answers.items():
                loads[name] = sum(one.info.write_queues for one in answer.topics)
        if not there:
            return spread(wanted.queues, loads, least)
        counts = {name: one.write_queues for name, one in there.items()}
        is_same = all(_is_as_created(one, wanted) for one in there.values())
        plan = left_over(wanted.queues, counts, loads, least) if is_same else None
        if plan is None:
            raise TopicExists(
                f"topic {wanted.topic} exists already in {', '.join(there)}: "
                f"`mq topic describe {wanted.topic}` shows it, `mq topic extend` adds a broker set"
            )
        return plan

    async def _create_part(
        self, broker_set: str, wanted: pb.CreateTopicRequest, queues: int
    ) -> pb.TopicInfo:
        request = pb.CreateTopicRequest()
        request.CopyFrom(wanted)
        request.queues = queues
        try:
            info: pb.TopicInfo = await self._ask(broker_set, request)
        except TopicExists:
            # Perhaps by this very call, sent again after its answer was lost.
            described = await self._ask(broker_set, pb.DescribeTopicRequest(topic=wanted.topic))
            info = described.info
            if not _is_as_created(info, wanted) or info.write_queues != queues:
                raise
        return info

    async def _why_kept(
        self, topic: str, broker_set: str, part: pb.DescribeTopicResponse
    ) -> list[str]:
        """The reasons not to delete this part: what would be lost."""
        reasons = ["it takes messages: drain it first"] if part.info.is_writable else []
        unread = await self._unread(topic, broker_set, part)
        reasons += [f"group {group} has {count:,} to consume" for group, count in unread.items()]
        request = pb.ListTransactionsRequest(transactions_max=_TRANSACTIONS_MAX)
        answer = await self._ask(broker_set, request)
        half = sum(one.messages for one in answer.transactions if one.topic == topic)
        if half:
            reasons.append(f"{half:,} half messages wait for the end of their transaction")
        status = await self._ask(broker_set, pb.BrokerStatusRequest())
        if status.timing_messages:
            reasons.append(
                f"{status.timing_messages:,} delayed messages wait in this broker set, perhaps "
                "some of this topic"
            )
        return reasons

    async def _unread(
        self, topic: str, broker_set: str, part: pb.DescribeTopicResponse
    ) -> dict[str, int]:
        """The messages of this part that each group has still to consume. Groups in broadcast mode
        keep their offsets to themselves.
        """
        listed = (await self._ask_all(pb.ListGroupsRequest())).all()
        groups = {
            one.group
            for answer in listed.values()
            for one in answer.groups
            if topic in one.topics and one.mode != MODE_BROADCAST
        }
        unread: dict[str, int] = {}
        for group in sorted(groups):
            lags = await self._lags(group, topic, broker_set)
            count = sum(lags.get(queue.queue_id, queue.end - queue.start) for queue in part.queues)
            if count:
                unread[group] = count
        return unread

    async def _lags(self, group: str, topic: str, broker_set: str) -> dict[int, int]:
        request = pb.DescribeGroupRequest(group=group)
        try:
            answer = await self._ask(broker_set, request)
        except GroupNotFound:
            return {}
        return {one.queue_id: one.lag for one in answer.queues if one.topic == topic}

    # The view of clients

    async def _until_shown(self, topic: str, parts: Mapping[str, pb.TopicInfo]) -> None:
        """Returns when every broker that answers shows these parts to clients, or when the time is
        over: sets hear of each other about once a second.
        """
        self._connection.topology.forget(topic)
        wanted = {(name, one.write_queues) for name, one in parts.items()}
        deadline_s = now_s() + self._timeout_s
        nodes = [node for one in (await self._directory()).broker_sets for node in one.nodes]
        await asyncio.gather(
            *(
                self._shown_by(one.address, topic, wanted, deadline_s)
                for one in nodes
                if one.address
            )
        )

    async def _shown_by(
        self, address: str, topic: str, wanted: set[tuple[str, int]], deadline_s: float
    ) -> None:
        request = RouteRequest(topics=[topic])
        while now_s() < deadline_s:
            try:
                answer: RouteResponse = await self._connection.call(
                    request, _ROUTE_S, server=address
                )
            except NotLeader:
                # A broker that has just started has not read its log yet.
                continue
            except Unreachable:
                # Clients do not reach this broker either.
                return
            if wanted <= {(one.broker_set, one.write_queues) for one in answer.topics}:
                return
            await asyncio.sleep(_LOOK_AGAIN_S)


def _part(replies: Replies, topic: str, broker_set: str) -> Any:
    """The part of this set. TopicNotFound, with a text that names the set."""
    found = replies.found.get(broker_set)
    if found is not None:
        return found
    error = replies.absent.get(broker_set)
    if error is None or not replies.found:
        replies.all()
    raise reworded(
        error or TopicNotFound(),
        f"topic {topic} has no queues in broker set {broker_set}: it is in "
        f"{', '.join(replies.found)}",
    )


def _check_grows(there: pb.TopicInfo, queues: int) -> None:
    where = f"topic {there.topic} in broker set {there.broker_set}"
    if not there.is_writable:
        raise IllegalRequest(
            f"{where} is drained: make it writable there again (`mq topic alter {there.topic} "
            f"--writable --set {there.broker_set}`), or remove its part first"
        )
    if queues < max(there.write_queues, there.read_queues):
        raise IllegalRequest(
            f"{where} has {there.write_queues} queues already (to read: {there.read_queues}): "
            "alter it to have fewer"
        )


def _is_as_created(info: pb.TopicInfo, wanted: pb.CreateTopicRequest) -> bool:
    return (
        info.type == wanted.type
        and info.priorities == wanted.priorities
        and info.read_queues == info.write_queues
        and info.is_readable
        and info.is_writable
    )


def _merged_summary(parts: Sequence[pb.TopicSummary]) -> pb.TopicSummary:
    return pb.TopicSummary(
        info=merged_info([one.info for one in parts]),
        messages=sum(one.messages for one in parts),
        messages_written=sum(one.messages_written for one in parts),
        broker_sets=[name for one in parts for name in one.broker_sets],
    )


# Queues are spread evenly over broker sets; the remainder goes to the sets with the fewest queues.


def needs_loads(queues: int, sets: int, least: int) -> bool:
    """Whether the sets get different numbers of queues, so that their loads matter."""
    return _used(queues, sets, least) < sets or queues % sets != 0


def spread(queues: int, loads: Mapping[str, int], least: int = 1) -> dict[str, int]:
    """The number of queues for each set. `loads`: the queues that each set has. A set that would
    get fewer than `least` is left out, unless it is the only one.
    """
    return _dealt(queues, _used(queues, len(loads), least), loads)


def left_over(
    queues: int, there: Mapping[str, int], loads: Mapping[str, int], least: int = 1
) -> dict[str, int] | None:
    """The queues still to be created of a topic that only some sets have, after a creation that
    failed half-way. None if the topic was not created by `spread`, or is complete.
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
