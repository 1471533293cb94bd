"""Reading queues by hand, for programs with asyncio: any position, any number of times.

No membership: the caller decides which client reads which queue, and when an offset is committed.
`QueuePulls` are single pulls, of the leader or of a follower to which it redirects. A follower is
believed in the messages that it shows and nothing else: at any failure, and whenever it has none to
show, the leader is asked again.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from mq.client.cluster.connection import ConnectedClient, Connection, ConnectionOptions
from mq.client.cluster.retry import CALL_TIMEOUT_S, now_s
from mq.client.consumer.offsets import commit_offsets, find_offsets, query_offsets
from mq.client.consumer.options import Start, wanted_tags
from mq.client.decode import Decoder, Page, parse_page, parse_pull_response
from mq.client.lifecycle import Background
from mq.client.messages import FilterLike, QueueRef, ReceivedMessage, wire_filter
from mq.client.public import arguments_of, renamed
from mq.errors import IllegalConfig, MqError
from mq.names import check_group
from mq.wire.v1 import consumer_pb2 as wire

if TYPE_CHECKING:
    import pyarrow as pa

    from mq.client.arrow.reading import ArrowRead


# A pull asks the leader if a follower does not answer for so long after its wait, and follows so
# many responses that have no messages but name another broker.
_ANSWER_S_MAX = 2.0
_HOPS_MAX = 3


class PullStatus(enum.Enum):
    FOUND = wire.PULL_FOUND
    # No message yet, or none that passes the filter: continue at next_offset.
    END = wire.PULL_END
    # The messages of this position are deleted: the oldest one is at next_offset.
    TOO_SMALL = wire.PULL_TOO_SMALL
    # Behind the end, which is next_offset.
    TOO_LARGE = wire.PULL_TOO_LARGE


@dataclass(frozen=True, slots=True)
class PullResult:
    """`start` and `end` are those of the queue: its oldest message, and the next one to come."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    start: int
    end: int


# A queue as users name it: the broker set may be left out if only one has the topic.
QueueLike = tuple[str, int] | QueueRef
Offsets = Mapping[tuple[str, int], int] | Mapping[QueueRef, int]


@dataclass(frozen=True)
class PullOptions(ConnectionOptions):
    """Documented at `PullConsumer`. Raises IllegalConfig or IllegalGroup."""

    group: str | None = None
    _: KW_ONLY
    read_followers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group is not None:
            check_group(self.group)


class PullConsumer(ConnectedClient):
    """Reads queues by hand: any place, any number of times, without a membership.

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

    @arguments_of(PullOptions)
    def __init__(self, options: PullOptions) -> None:
        self._connection = options.connect()
        self._group = options.group
        self._read_followers = options.read_followers
        self._reads = QueuePulls(self._connection)
        self._unreadable = 0

    async def queues(self, topic: str) -> list[QueueRef]:
        """The readable queues of all broker sets. Raises TopicNotFound."""
        return (await self._connection.topology.locate(topic)).readable

    @renamed(messages_max="max_messages", bytes_max="max_bytes")
    async def pull(  # noqa: PLR0913
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        filter: FilterLike = None,  # noqa: A002
        max_messages: int = 32,
        max_bytes: int = 0,
        wait_ms: int = 0,
        broker_set: str = "",
    ) -> PullResult:
        """Messages from there on; when there are none, waits for some. 0 bytes: 4 MiB, which is
        also the most; one message comes however large it is. Without a broker set: of the one that
        has the topic; IllegalRequest when there are several.
        """
        ref = await self._connection.topology.queue(topic, queue_id, broker_set)
        request = wire.PullRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            filter=wire_filter(filter),
            messages_max=max_messages,
            bytes_max=max_bytes,
            wait_ms=wait_ms,
            any_replica=self._read_followers,
            zone=self._connection.zone,
        )
        page = await self._reads.pull(ref, request)
        response, runs = parse_pull_response(page.data)
        decoder = Decoder(wanted_tags({topic: filter}))
        decoded = decoder.messages(ref, runs, 0, runs.count)
        messages = [one for one in decoded if one is not None]
        self._unreadable += decoder.unreadable_messages
        return PullResult(
            PullStatus(response.status),
            messages,
            response.next_offset,
            response.start,
            response.end,
        )

    async def read_arrow(
        self,
        topic: str,
        *,
        start: Start | Offsets = "earliest",
        end: Start | Offsets = "latest",
        filter: FilterLike = None,  # noqa: A002
        with_properties: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """The messages of a topic as Arrow record batches, queue by queue, from `start` up to, but
        not including, `end`: "earliest", "latest", a time in milliseconds, or offsets of queues,
        which select these queues. Ends at the messages that are there now. Needs `mq[arrow]`.
        """
        read = await self._arrow_read(topic, start, end, filter, with_properties)
        async for batch in read.batches():
            yield batch

    async def to_arrow(
        self,
        topic: str,
        *,
        start: Start | Offsets = "earliest",
        end: Start | Offsets = "latest",
        filter: FilterLike = None,  # noqa: A002
        with_properties: bool = False,
    ) -> pa.Table:
        """As `read_arrow`, all of it in memory as one table."""
        read = await self._arrow_read(topic, start, end, filter, with_properties)
        return read.table([batch async for batch in read.batches()])

    async def _arrow_read(
        self,
        topic: str,
        start: Start | Offsets,
        end: Start | Offsets,
        chosen: FilterLike,
        with_properties: bool,  # noqa: FBT001 # those of `read_arrow`
    ) -> ArrowRead:
        from mq.client.arrow.reading import ArrowRead, QueueRange  # noqa: PLC0415 # an extra

        starts = await self._offsets(topic, start)
        ends = await self._offsets(topic, end)
        # A read does not wait for messages to come.
        latest = ends if end == "latest" else await self.find_offsets(topic, "latest")
        ranges = [
            QueueRange(ref, starts[ref], min(ends[ref], latest[ref]))
            for ref in starts
            if ref in ends and ref in latest
        ]
        return ArrowRead(
            self._connection,
            ranges,
            chosen,
            with_properties=with_properties,
            any_replica=self._read_followers,
        )

    async def _offsets(self, topic: str, at: Start | Offsets) -> dict[QueueRef, int]:
        if not isinstance(at, Mapping):
            return await self.find_offsets(topic, at)
        refs = await self._found(at)
        return {
            ref: place for ref, place in zip(refs, at.values(), strict=True) if ref.topic == topic
        }

    @property
    def unreadable_messages(self) -> int:
        """The number of messages that could not be read and were skipped; the log names them."""
        return self._unreadable

    async def find_offsets(self, topic: str, to: Start) -> dict[QueueRef, int]:
        """The offsets of all queues of the topic: "earliest", "latest", or the first at a time."""
        return await find_offsets(self._connection, topic, to)

    async def commit(self, offsets: Offsets) -> None:
        """Durable when it returns. Raises GroupNotEmpty if the group has members."""
        places = dict(zip(await self._found(offsets), offsets.values(), strict=True))
        await commit_offsets(self._connection, self._named_group(), places)

    async def committed(self, queues: Iterable[QueueLike] = ()) -> dict[QueueRef, int]:
        """The offsets of these queues, or all of the group; queues without one are left out."""
        refs = await self._found(queues)
        return await query_offsets(self._connection, self._named_group(), refs)

    async def _found(self, queues: Iterable[QueueLike]) -> list[QueueRef]:
        """With their sets, whose brokers are known then: a broker takes every queue for one of its
        own set.
        """
        return [await self._connection.topology.queue(*QueueRef(*ref)) for ref in queues]

    def _named_group(self) -> str:
        if self._group is None:
            raise IllegalConfig("offsets are a group's: give PullConsumer one")
        return self._group


class ThreadedPullConsumer(PullConsumer):
    """A pull consumer whose record batches another thread than that of its loop decodes."""

    def read_arrow_here(
        self,
        background: Background,
        topic: str,
        *,
        start: Start | Offsets,
        end: Start | Offsets,
        filter: FilterLike,  # noqa: A002
        with_properties: bool,
    ) -> pa.RecordBatchReader:
        """DuckDB, Polars and pyarrow take the reader as it is; it can be read once."""
        work = self._arrow_read(topic, start, end, filter, with_properties)
        return background.run(work).reader(background)

    def to_arrow_here(self, background: Background, topic: str, **range_: Any) -> pa.Table:
        return self.read_arrow_here(background, topic, **range_).read_all()


class QueuePulls:
    """The pulls of one client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Addresses of the followers from which queues are read; all others at the leader.
        self._addresses: dict[QueueRef, str] = {}

    async def pull(self, ref: QueueRef, request: wire.PullRequest) -> Page:
        """The response of a follower, or of the leader if it has no messages."""
        deadline_s = now_s() + request.wait_ms / 1000
        for _ in range(_HOPS_MAX if request.any_replica else 0):
            address = self._addresses.get(ref, "")
            try:
                answer = await self._ask(ref, request, address)
            except MqError:
                if not address:
                    raise
                self._addresses.pop(ref, None)
                continue
            self._remember(ref, answer.read_from or address)
            if answer.has_messages:
                return answer
            if not answer.read_from and (not address or is_usual(answer.status)):
                return answer
            if not answer.read_from:
                self._addresses.pop(ref, None)
            request.wait_ms = max(0, round((deadline_s - now_s()) * 1000))
        request.any_replica = False
        return await self._ask(ref, request)

    def _remember(self, ref: QueueRef, address: str) -> None:
        """The address for the next pull of the queue."""
        if address and address != self._connection.of(ref.broker_set).known_leader:
            self._addresses[ref] = address
        else:
            self._addresses.pop(ref, None)

    async def _ask(self, ref: QueueRef, request: wire.PullRequest, address: str = "") -> Page:
        """One attempt at the address; without one, the leader of the set."""
        broker_set = self._connection.of(ref.broker_set)
        wait_s = request.wait_ms / 1000
        if address:
            timeout_s = wait_s + _ANSWER_S_MAX
            data: bytes = await broker_set.ask(address, request, timeout_s, raw_response=True)
        else:
            data = await broker_set.call(request, wait_s + CALL_TIMEOUT_S, raw_response=True)
        return parse_page(data)


def is_usual(status: int) -> bool:
    """Messages, or none yet. Only the leader can say that a position is outside of the queue."""
    return status in (wire.PULL_FOUND, wire.PULL_END)
