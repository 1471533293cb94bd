"""Reads for operators: topics, groups with their exact lag and leases, open transactions, dead
letters, single messages. On the leader only.

There may be very many topics, queues and groups: their lists are made in several turns of the loop,
so a list is not a snapshot of one moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError

from mq import names
from mq.broker.broker import Broker
from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.pulling import Query
from mq.broker.long_work import TimeSlice, encode_in_turns, in_turns
from mq.broker.queue import Queue, queues_of
from mq.broker.receive.holders import HeldRange
from mq.broker.state.leases import Range
from mq.broker.state.topics import Topic
from mq.errors import GroupNotFound, IllegalRequest, MessageNotFound
from mq.store import lookup
from mq.store.batch import message_of_frame
from mq.store.reading import Run, Status
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, Filter, Subscription
from mq.wire.v1.message_pb2 import Message

BROWSE_MAX = 1_000
_BROWSE_DEFAULT = 32
_BROWSE_BYTES = 2 << 20
# How many steps of one request may find nothing that the filter lets through.
_BROWSE_STEPS = 16
_TRANSACTIONS_DEFAULT, _TRANSACTIONS_MAX = 100, 1_000
_LEASES_DEFAULT, LEASES_MAX = 100, 1_000


class Inspector:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    # -- topics -----------------------------------------------------------------------------------

    async def topics(self, *, include_internal: bool) -> list[pb.TopicSummary]:
        kept: dict[str, int] = {}
        written: dict[str, int] = {}
        for name, _, start, end in self._broker.store.queues.extents():
            kept[name] = kept.get(name, 0) + end - start
            written[name] = written.get(name, 0) + end
        topics = list(self._broker.state.topics)
        return await in_turns(
            pb.TopicSummary(
                info=self.topic_info(topic),
                messages=kept.get(topic.name, 0),
                messages_written=written.get(topic.name, 0),
                broker_sets=[self._broker_set],
            )
            for topic in topics
            if include_internal or not topic.is_internal
        )

    async def topic(self, name: str, may_see_group: Callable[[str], bool]) -> bytes:
        """A DescribeTopicResponse."""
        topic = self._broker.state.topics.find(name)
        offsets, turn = self._broker.state.offsets, TimeSlice()
        groups = []
        for group in filter(may_see_group, offsets.groups()):
            if any(queue.topic == name for queue in offsets.positions(group)):
                groups.append(group)
            await turn.over()
        info = self.topic_info(topic)
        response = pb.DescribeTopicResponse(info=info, groups=groups, parts=[info])
        queues = map(self._queue_stats, queues_of(name, topic.read_queues))
        return await encode_in_turns(response, "queues", queues)

    def topic_info(self, topic: Topic) -> pb.TopicInfo:
        stored_bytes = self._broker.machine.stored_bytes(topic.name)
        return topic_info(topic, self._broker_set, stored_bytes)

    def _queue_stats(self, queue: Queue) -> dict[str, Any]:
        start, end = self._broker.groups.extent(queue)
        found = self._broker.store.queues.get(*queue)
        last_ms = 0
        if found is not None and end > start:
            last_ms = self._broker.stored_at_ms(found, end - 1)
        return {
            "queue_id": queue.queue_id,
            "start": start,
            "end": end,
            "last_stored_at_ms": last_ms,
            "broker_set": self._broker_set,
        }

    # -- groups -----------------------------------------------------------------------------------

    async def groups(self, may_see: Callable[[str], bool]) -> list[pb.GroupSummary]:
        found, turn = [], TimeSlice()
        for name in filter(may_see, self._broker.groups.names()):
            found.append(self._summary(name, await in_turns(self._group_queues(name))))
            await turn.over()
        return found

    async def group(self, name: str) -> bytes:
        """A DescribeGroupResponse. Raises GroupNotFound."""
        names.check_group(name)
        live = self._broker.groups.live(name)
        if live is None and name not in self._broker.state.offsets:
            raise GroupNotFound(f"there is no group {name}: `mq group list` shows those that are")
        queues = await in_turns(self._group_queues(name))
        live = self._broker.groups.live(name)
        members = live.members if live else {}
        stalled_ms = self._broker.groups.stalled_ms(name)
        subscriptions = next((one.spec.subscriptions for one in members.values()), {})
        response = pb.DescribeGroupResponse(
            summary=self._summary(name, queues),
            subscriptions=[
                Subscription(topic=topic, filter=shown_filter(text))
                for topic, text in subscriptions.items()
            ],
            members=[
                pb.MemberInfo(
                    member_id=member_id,
                    zone=one.spec.zone,
                    address=one.spec.address,
                    last_seen_at_ms=self._broker.now_ms() - self._broker.groups.silent_ms(one),
                    is_streaming=one.spec.is_streaming,
                    queues=live.assigned_count(member_id) if live else 0,
                    stalled_ms=stalled_ms.get(member_id, 0),
                    broker_sets=[self._broker_set],
                )
                for member_id, one in sorted(members.items())
            ]
            + [
                pb.MemberInfo(
                    member_id=member_id,
                    last_seen_at_ms=self._broker.now_ms() - silent_ms,
                    is_receiving=True,
                    broker_sets=[self._broker_set],
                )
                for member_id, silent_ms in sorted(self._broker.receiving.members(name).items())
            ],
        )
        return await encode_in_turns(response, "queues", queues)

    def _summary(self, name: str, queues: list[dict[str, Any]]) -> pb.GroupSummary:
        live = self._broker.groups.live(name)
        members = live.members if live else {}
        member_ids = sorted({*members, *self._broker.receiving.members(name)})
        mode = next((one.spec.mode for one in members.values()), MODE_CLUSTERING)
        return pb.GroupSummary(
            group=name,
            mode=mode,  # type: ignore[arg-type]  # an enum is a number on the wire
            members=len(member_ids),
            member_ids=member_ids,
            generation=live.generation if live else 0,
            lag=sum(queue["lag"] for queue in queues),
            topics=sorted({queue["topic"] for queue in queues}),
        )

    def _group_queues(self, name: str) -> Iterator[dict[str, Any]]:
        """The fields of a GroupQueue each."""
        live = self._broker.groups.live(name)
        committed = self._broker.state.offsets.positions(name)
        owned = live.assignees() if live else {}
        # Failed messages wait for the group even before a member has taken any of them.
        failed = Queue(names.retry_topic(name), 0)
        waiting = [failed] if failed.topic in self._broker.state.topics else []
        # Most are in order already, and little is left to sort.
        more = dict.fromkeys(queue for queue in (*owned, *waiting) if queue not in committed)
        for queue in sorted([*committed, *more]):
            start, end = self._broker.groups.extent(queue)
            at = committed.get(queue)
            lag = end - min(max(start if at is None else at, start), end)
            yield {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "committed": -1 if at is None else at,
                "start": start,
                "end": end,
                "lag": max(0, lag - self._broker.state.leases.done_ahead(name, queue)),
                "member_id": owned.get(queue, ""),
                "broker_set": self._broker_set,
            }

    async def leases(
        self, request: pb.ListLeasesRequest, may_see: Callable[[str], bool]
    ) -> pb.ListLeasesResponse:
        """Without those of topics that the caller may not see. Raises GroupNotFound."""
        names.check_group(request.group)
        count = request.leases_max or _LEASES_DEFAULT
        if count > LEASES_MAX:
            raise IllegalRequest(f"leases_max = {count}: at most {LEASES_MAX}")
        name, state = request.group, self._broker.state
        if name not in state.offsets and self._broker.groups.live(name) is None:
            raise GroupNotFound(f"there is no group {name}: `mq group list` shows those that are")
        place = _parse_lease_page(request.page)
        answer, turn = pb.ListLeasesResponse(), TimeSlice()
        found = sorted(
            queue
            for (group, queue), _ in state.leases.items()
            if group == name and request.topic in ("", queue.topic) and may_see(queue.topic)
        )
        for queue in found:
            leases = state.leases.get(name, queue)
            for one in list(leases.ranges) if leases else ():
                for lease in self._lease_infos(queue, one):
                    if lease.is_leased:
                        answer.leased += lease.end - lease.start
                    else:
                        answer.waiting += lease.end - lease.start
                    if (lease.topic, lease.queue_id, lease.start) < place or answer.next_page:
                        continue
                    if len(answer.leases) == count:
                        answer.next_page = f"{lease.topic}/{lease.queue_id}/{lease.start}"
                    else:
                        answer.leases.append(lease)
                await turn.over()
        return answer

    def _lease_infos(self, queue: Queue, one: Range) -> Iterator[pb.LeaseInfo]:
        unheld = [HeldRange(one.start, one.end, "")]
        for held in self._broker.receiving.holders.of(queue, one) if one.lease else unheld:
            yield pb.LeaseInfo(
                topic=queue.topic,
                queue_id=queue.queue_id,
                start=held.start,
                end=held.end,
                is_leased=bool(one.lease),
                visible_at_ms=one.visible_at_ms,
                attempts=one.attempts,
                member_id=held.member_id,
                broker_set=self._broker_set,
            )

    # -- transactions and dead letters ------------------------------------------------------------

    def transactions(
        self, group: str, count: int, may_see_topic: Callable[[str], bool]
    ) -> pb.ListTransactionsResponse:
        """The oldest, of a producer group or of all; 0 of them is the default."""
        broker, count = self._broker, count or _TRANSACTIONS_DEFAULT
        if count > _TRANSACTIONS_MAX:
            raise IllegalRequest(f"transactions_max = {count}: at most {_TRANSACTIONS_MAX}")
        if group:
            names.check_group(group)
        transactions = broker.state.transactions.open.values()
        found = [
            one
            for one in transactions
            if group in ("", one.producer_group) and may_see_topic(one.topic)
        ]
        oldest = heapq.nsmallest(count, found, key=lambda one: one.id)
        return pb.ListTransactionsResponse(
            open=len(found),
            transactions=[
                pb.TransactionInfo(
                    transaction_id=names.message_id(self._broker_set, one.id),
                    topic=one.topic,
                    producer_group=one.producer_group,
                    stored_at_ms=one.stored_at_ms,
                    messages=one.messages,
                    checks=one.checks,
                    checks_max=one.checks_max,
                    next_check_ms=one.next_check_ms,
                    producers=broker.transacting.producers(one.producer_group),
                )
                for one in oldest
            ],
        )

    def dead_letter_counts(self) -> list[pb.DeadLetterCount]:
        return [
            pb.DeadLetterCount(
                group=one.group,
                messages=one.messages,
                last_stored_at_ms=one.last_stored_at_ms,
                broker_sets=[self._broker_set],
            )
            for one in self._broker.dead_letters.counts()
        ]

    async def dead_letters(
        self, group: str, queue_offset: int, messages_max: int
    ) -> tuple[list[pb.StoredMessage], int]:
        """From an offset on, and the offset behind them."""
        await self._broker.dead_letters.load(group, queue_offset, messages_max)
        found, next_offset = self._broker.dead_letters.listed(group, queue_offset, messages_max)
        return list(map(self._stored, found)), next_offset

    # -- messages ---------------------------------------------------------------------------------

    async def message(self, message_id: str) -> pb.StoredMessage:
        """Raises MessageNotFound, IllegalRequest."""
        broker_set, log_offset = names.parse_message_id(message_id)
        if broker_set != self._broker_set:
            raise MessageNotFound(
                f"{message_id} is of broker set {broker_set}; this is {self._broker_set}"
            )
        found = self._broker.store.lookup
        await self._broker.page_in.load([found.place(log_offset)])
        return self._stored(found.by_id(log_offset))

    async def by_key(self, request: pb.QueryMessagesRequest) -> pb.MessageList:
        self._broker.state.topics.readable(request.topic)
        if not request.key:
            raise IllegalRequest("key is empty: say which one to look for")
        end_ms = request.end_ms or self._broker.now_ms() + 1
        wanted = (
            request.topic,
            request.key,
            request.begin_ms,
            end_ms,
            request.messages_max or lookup.QUERY_RESULTS_MAX,
        )
        await self._broker.page_in.load(self._broker.store.lookup.places_by_key(*wanted))
        found = self._broker.store.lookup.by_key(*wanted)
        return pb.MessageList(messages=map(self._stored, found))

    async def browse(
        self, request: pb.BrowseMessagesRequest, wanted: CompiledFilter
    ) -> pb.MessageList:
        """From an offset on, as far as a few steps go. Offsets that retention has dropped are
        skipped.
        """
        queue = Queue(request.topic, request.queue_id)
        self._broker.state.topics.readable(*queue)
        count = min(request.messages_max or _BROWSE_DEFAULT, BROWSE_MAX)
        query = Query(queue, request.queue_offset, wanted, _BROWSE_BYTES, count)
        for _ in range(_BROWSE_STEPS):
            result = await self._broker.puller.read_anywhere(query)
            if result.status == Status.FOUND:
                messages = [one for run in result.runs for one in self._opened(queue, run)]
                return pb.MessageList(messages=messages, next_offset=result.next_offset)
            if result.status not in (Status.NOTHING_MATCHED, Status.TOO_SMALL):
                break
            at = result.start if result.status == Status.TOO_SMALL else result.next_offset
            query = query._replace(queue_offset=at)
        return pb.MessageList(next_offset=min(query.queue_offset, result.end))

    def _opened(self, queue: Queue, run: Run) -> Iterator[pb.StoredMessage]:
        at = 0
        for queue_offset, size in enumerate(run.sizes.tolist(), start=run.queue_offset):
            frame = run.frames[at : at + size]
            try:
                message = Message.FromString(bytes(message_of_frame(frame)))
            except DecodeError:
                # The producer sent bytes that are no message; the place is shown all the same.
                message = Message()
            yield self._stored(
                lookup.StoredMessage(
                    *queue, queue_offset, run.log_offset + at, run.stored_at_ms, message
                )
            )
            at += size

    def _stored(self, found: lookup.StoredMessage) -> pb.StoredMessage:
        return pb.StoredMessage(
            message_id=names.message_id(self._broker_set, found.log_offset),
            topic=found.topic,
            queue_id=found.queue_id,
            queue_offset=found.queue_offset,
            log_offset=found.log_offset,
            stored_at_ms=found.stored_at_ms,
            message=found.message,
        )


def _parse_lease_page(page: str) -> tuple[str, int, int]:
    if not page:
        return "", 0, 0
    topic, queue_id, start = ["", "", "", *page.rsplit("/", 2)][-3:]
    if not topic or not (queue_id + start).isascii() or not (queue_id + start).isdecimal():
        raise IllegalRequest(
            f"page = {page[:60]!r} is none: give `next_page` of the answer before, or leave it out"
        )
    return topic, int(queue_id), int(start)


def topic_info(topic: Topic, broker_set: str = "", stored_bytes: int = 0) -> pb.TopicInfo:
    return pb.TopicInfo(
        topic=topic.name,
        type=topic.type,  # type: ignore[arg-type]  # an enum is a number on the wire
        write_queues=topic.write_queues,
        read_queues=topic.read_queues,
        is_readable=topic.is_readable,
        is_writable=topic.is_writable,
        created_at_ms=topic.created_at_ms,
        is_internal=topic.is_internal,
        priorities=topic.priorities,
        broker_set=broker_set,
        stored_bytes=stored_bytes,
    )


def shown_filter(canonical: str) -> Filter:
    """The filter that a canonical text stands for."""
    kind, _, text = canonical.partition(" ")
    if kind == "SQL":
        return Filter(sql=text)
    return Filter(tags=text if kind == "TAG" else "*")
