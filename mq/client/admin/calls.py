"""Calls of an administrator to all broker sets at once, and to one of them.

A read returns what the reachable sets have, and names the others. A write first makes sure that all
sets that it needs answer, and changes nothing otherwise; one that fails between two sets tells
where it was carried out. The only state is the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.connection import ConnectedClient, ConnectionOptions
from mq.client.cluster.errors import reworded
from mq.client.cluster.retry import CALL_TIMEOUT_S, now_s
from mq.client.public import arguments_of
from mq.errors import IllegalRequest, MqError
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import RouteResponse

# For a set that is not expected to have what is asked for, or that did not answer lately.
SHORT_S = 1.0
_SILENT_S = 10.0

T = TypeVar("T")


class Answers(list[T]):
    """The answers of all broker sets except `missing_sets`, which did not answer."""

    missing_sets: tuple[str, ...]

    def __init__(self, found: Iterable[T] = (), missing_sets: Iterable[str] = ()) -> None:
        super().__init__(found)
        self.missing_sets = tuple(missing_sets)


class Replies(NamedTuple):
    """By the name of the set: answers; errors of sets that have no such topic, group or message;
    and errors of sets that did not answer.
    """

    found: dict[str, Any]
    absent: dict[str, MqError]
    missing: dict[str, MqError]

    def some(self) -> dict[str, Any]:
        """For reads: the answers, at least one. Raises an error of a set when there is none."""
        if self.found:
            return self.found
        # A set that does not answer may have it, so "not found" would claim too much.
        return self._fail(self.missing or self.absent)

    def all(self) -> dict[str, Any]:
        """For writes: the answers of all sets that have it, at least one. Raises when a set did not
        answer; nothing may be changed then.
        """
        if not self.missing:
            return self.some()
        return self._fail(self.missing, "; nothing was changed")

    def _fail(self, errors: Mapping[str, MqError], addition: str = "") -> NoReturn:
        name, error = next(iter(errors.items()))
        if self.missing and (len(self.found) + len(self.absent) + len(self.missing) > 1):
            raise reworded(error, f"broker set {name}: {error}{addition}")
        raise error


@dataclass(frozen=True)
class AdminOptions(ConnectionOptions):
    """The constructor arguments of an Admin."""

    servers: str | Sequence[str] = "127.0.0.1:8081"
    _: KW_ONLY
    timeout_s: float = CALL_TIMEOUT_S


class AdminCalls(ConnectedClient):
    """The connection of an Admin, and calls by it."""

    @arguments_of(AdminOptions)
    def __init__(self, options: AdminOptions) -> None:
        """`timeout_s`: how long a call may take, with all its attempts to find a broker."""
        self._options = options
        self._connection = options.connect()
        self._timeout_s = options.timeout_s
        # Sets that did not answer, and until when another call gives them little time.
        self._silent_until_s: dict[str, float] = {}

    async def _directory(self, topics: Sequence[str] = ()) -> RouteResponse:
        """The brokers and routes, asked for anew each time: sets come and go. The brokers that the
        user named come first: a set that was removed, or is yet to be added, knows only itself.
        """
        seeds = self._connection.seeds
        ranking = self._connection.servers.ranking(now_s())
        named = [one for one in ranking if one in seeds]
        return await self._connection.brokers(topics, self._timeout_s, first=named)

    async def _set_names(self) -> list[str]:
        return [one.name for one in (await self._directory()).broker_sets]

    async def _known_set(self, broker_set: str, known: Sequence[str] = ()) -> str:
        """IllegalRequest: the cluster has no such set."""
        known = known or await self._set_names()
        if broker_set not in known:
            raise IllegalRequest(
                f"there is no broker set {broker_set!r}: the cluster has {', '.join(known)}"
            )
        return broker_set

    async def _ask(
        self, broker_set: str, request: WireMessage, timeout_s: float | None = None
    ) -> Any:
        """The answer of the leader of the set."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._connection.of(broker_set).call(request, timeout_s)

    async def _ask_broker(self, server: str, request: WireMessage) -> Any:
        """The answer of one broker; without an address, of any."""
        return await self._connection.call(request, self._timeout_s, server=server)

    async def _ask_all(
        self,
        requests: WireMessage | Mapping[str, WireMessage],
        *,
        absent: type[MqError] | tuple[type[MqError], ...] = (),
        unexpected: Iterable[str] = (),
    ) -> Replies:
        """The answers of all sets at once, or of those for which there is a request. `absent`: the
        errors by which a set says that it has no such thing. Sets in `unexpected` get little time.
        """
        if not isinstance(requests, Mapping):
            requests = dict.fromkeys(await self._set_names(), requests)
        silent = [name for name, until_s in self._silent_until_s.items() if now_s() < until_s]
        hurried = {*unexpected, *silent}
        short_s = min(SHORT_S, self._timeout_s)
        asking = [
            self._ask(name, request, short_s if name in hurried else None)
            for name, request in requests.items()
        ]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        replies = Replies({}, {}, {})
        for name, answer in zip(requests, answers, strict=True):
            if isinstance(answer, absent):
                replies.absent[name] = answer
            elif isinstance(answer, MqError) and answer.retryable:
                replies.missing[name] = answer
                self._silent_until_s[name] = now_s() + _SILENT_S
            elif isinstance(answer, BaseException):
                raise answer
            else:
                replies.found[name] = answer
        return replies

    async def _change_each(
        self,
        sets: Iterable[str],
        request: WireMessage | Mapping[str, WireMessage],
        done: str,
        *,
        absent: type[MqError] | tuple[type[MqError], ...] = (),
    ) -> dict[str, Any]:
        """Changes one set after the other, by this request, or by the one for the set. `done` tells
        what was carried out, for the error when the next set fails. A set that raises `absent` is
        skipped: it had the thing a moment ago, so another client has deleted it, or an attempt of
        this one whose answer was lost.
        """
        answers: dict[str, Any] = {}
        for name in sets:
            own = request[name] if isinstance(request, Mapping) else request
            try:
                answers[name] = await self._ask(name, own)
            except absent:
                continue
            except MqError as error:
                raise (partly_done(error, name, done, answers) if answers else error) from None
        return answers


def partly_done(error: MqError, broker_set: str, done: str, done_in: Iterable[str]) -> MqError:
    return reworded(
        error,
        f"broker set {broker_set}: {error}; {done} in {', '.join(done_in)} by now, "
        "and the same call again completes it",
    )


def check_counts(**numbers: int | None) -> None:
    # Protobuf would refuse it too, with a text that does not name the parameter.
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise IllegalRequest(f"{name} is {number}: it must not be negative")


def merged_info(parts: Sequence[pb.TopicInfo]) -> pb.TopicInfo:
    """The parts of all sets as one topic."""
    if len(parts) == 1:
        return parts[0]
    return pb.TopicInfo(
        topic=parts[0].topic,
        type=parts[0].type,
        write_queues=sum(one.write_queues for one in parts),
        read_queues=sum(one.read_queues for one in parts),
        is_readable=any(one.is_readable for one in parts),
        is_writable=any(one.is_writable for one in parts),
        created_at_ms=min(one.created_at_ms for one in parts),
        is_internal=parts[0].is_internal,
        priorities=parts[0].priorities,
        stored_bytes=sum(one.stored_bytes for one in parts),
    )
