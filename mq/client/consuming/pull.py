"""Reading queues by hand, for programs with asyncio: any place, any number of times.

No membership: whoever uses it decides who reads what, and when an offset is committed. What is far
behind is read where the leader says, from a follower of the set. A follower is believed in what it
shows only: at any failure, and whenever it has nothing to show, the leader is asked.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from google.protobuf.message import DecodeError

from mq.client.connecting.asking import Question, now_s
from mq.client.connecting.wiring import CALL_TIMEOUT_S, Connection
from mq.client.consuming import offset_calls
from mq.client.consuming.decode import Decoder, Frames, parse_pull_response
from mq.client.consuming.subscription import Start, split_tags
from mq.client.model import FilterLike, QueueRef, ReceivedMessage, wire_filter
from mq.errors import IllegalConfig, Internal, MqError
from mq.names import check_group
from mq.wire.v1 import consumer_pb2 as wire

_SERVICE = "ConsumerService"
# What a broker that does not lead may take beyond the wait, before the leader is asked.
_FOLLOWER_S = 2.0
# How often an answer without messages may name somebody else.
_HOPS_MAX = 3


class PullStatus(enum.Enum):
    FOUND = wire.PULL_FOUND
    # Nothing there yet, or nothing that the filter lets through: go on at next_offset.
    END = wire.PULL_END
    # The messages there are gone: the oldest is at next_offset.
    TOO_SMALL = wire.PULL_TOO_SMALL
    # Behind the end, which is next_offset.
    TOO_LARGE = wire.PULL_TOO_LARGE


@dataclass(frozen=True, slots=True)
class PullResult:
    """`start` and `end` are the queue's: its oldest message, and the next one to come."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    start: int
    end: int


_Answer = tuple[wire.PullResponse, list[Frames]]
# A queue as users name it: the broker set may be left out when only one has the topic.
QueueLike = tuple[str, int] | QueueRef
Offsets = Mapping[tuple[str, int], int] | Mapping[QueueRef, int]


class PullConsumer:
    """
    >>> async def read() -> None:
    ...     async with PullConsumer(servers) as consumer:
    ...         for topic, queue_id, broker_set in await consumer.queues("greetings"):
    ...             result = await consumer.pull(topic, queue_id, 0, broker_set=broker_set)
    ...             print(result.status.name, [message.body for message in result.messages])
    >>> asyncio.run(read())
    FOUND [b'hello', b'world']

    A `group` is needed for commits only, and must have no members then. With `read_followers` what
    is far behind is read from a broker that does not lead, and everything from one in the `zone` if
    there is one: `PullResult.end` is what that one knows of.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str | None = None,
        *,
        zone: str = "",
        read_followers: bool = True,
    ) -> None:
        if group is not None:
            check_group(group)
        self._group = group
        self._connection = Connection(servers, zone)
        self._read_followers = read_followers
        # Where a queue is read, if not at the leader.
        self._addresses: dict[QueueRef, str] = {}
        self._unreadable = 0

    async def queues(self, topic: str) -> list[QueueRef]:
        """That can be read, of all broker sets. TopicNotFound."""
        return (await self._connection.route(topic)).readable

    async def pull(  # noqa: PLR0913
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        filter: FilterLike = None,  # noqa: A002
        messages_max: int = 32,
        bytes_max: int = 0,
        wait_ms: int = 0,
        broker_set: str = "",
    ) -> PullResult:
        """Messages from there on; when there are none, waits for some. 0 bytes: 4 MiB, which is
        also the most; one message comes however large it is. Without a broker set: of the one that
        has the topic; IllegalRequest when there are several.
        """
        ref = await self._connection.queue(topic, queue_id, broker_set)
        request = wire.PullRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            filter=wire_filter(filter),
            messages_max=messages_max,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            any_replica=self._read_followers,
            zone=self._connection.zone,
        )
        response, runs = await self._pull(ref, request)
        decoder = Decoder(_wanted_tags(topic, filter))
        decoded = decoder.messages(ref, runs, ref.broker_set)
        messages = [one.message for one in decoded if one.message is not None]
        self._unreadable += decoder.unreadable_messages
        return PullResult(
            PullStatus(response.status),
            messages,
            response.next_offset,
            response.start,
            response.end,
        )

    async def _pull(self, ref: QueueRef, request: wire.PullRequest) -> _Answer:
        """Of whoever should be asked; what has no messages is the leader's to say."""
        deadline_s = now_s() + request.wait_ms / 1000
        for _ in range(_HOPS_MAX if request.any_replica else 0):
            address = self._addresses.get(ref, "")
            try:
                response, runs = await self._ask(ref, request, address)
            except MqError:
                if not address:
                    raise
                # Dead, or of no use any more.
                self._addresses.pop(ref, None)
                continue
            self._remember(ref, response.read_from or address)
            if runs or (not response.read_from and (not address or _is_plain(response))):
                return response, runs
            if not response.read_from:
                self._addresses.pop(ref, None)
            request.wait_ms = max(0, round((deadline_s - now_s()) * 1000))
        request.any_replica = False
        return await self._ask(ref, request)

    def _remember(self, ref: QueueRef, address: str) -> None:
        """Where to read from now on."""
        if address and address != self._connection.of(ref.broker_set).known_leader:
            self._addresses[ref] = address
        else:
            self._addresses.pop(ref, None)

    async def _ask(self, ref: QueueRef, request: wire.PullRequest, address: str = "") -> _Answer:
        """One attempt at the address; without one, the leader of the set."""
        broker_set = self._connection.of(ref.broker_set)
        wait_s = request.wait_ms / 1000
        if address:
            question = Question(_SERVICE, "Pull", request, 0.0, raw_response=True)
            data: bytes = await broker_set.ask(address, question, wait_s + _FOLLOWER_S)
        else:
            data = await broker_set.call(
                _SERVICE, "Pull", request, wait_s + CALL_TIMEOUT_S, raw_response=True
            )
        try:
            return parse_pull_response(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._unreadable

    async def find_offsets(self, topic: str, to: Start) -> dict[QueueRef, int]:
        """Of all queues of the topic: "earliest", "latest", or the first at a millisecond."""
        return await offset_calls.find_offsets(self._connection, topic, to)

    async def commit(self, offsets: Offsets) -> None:
        """Durable when it returns. GroupNotEmpty when the group has members."""
        places = {QueueRef(*ref): queue_offset for ref, queue_offset in offsets.items()}
        await offset_calls.commit_offsets(self._connection, self._named_group(), places)

    async def committed(self, queues: Iterable[QueueLike] = ()) -> dict[QueueRef, int]:
        """Of these queues, or all that the group has; those without an offset are left out."""
        refs = [QueueRef(*ref) for ref in queues]
        return await offset_calls.query_offsets(self._connection, self._named_group(), refs)

    def _named_group(self) -> str:
        if self._group is None:
            raise IllegalConfig("offsets are a group's: give PullConsumer one")
        return self._group

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _wanted_tags(topic: str, chosen: FilterLike) -> dict[str, frozenset[str]]:
    found = wire_filter(chosen)
    if found is None or found.WhichOneof("kind") != "tags":
        return {}
    return {topic: split_tags(found.tags)}


def _is_plain(response: wire.PullResponse) -> bool:
    """Nothing there, as it should be: what is gone, or not there yet, the leader has to say."""
    return response.status in (wire.PULL_FOUND, wire.PULL_END)
