"""The options of `spark.read` and `spark.readStream`, checked and parsed. Pure: no broker is asked.

Names are Spark's kind: upper and lower case are the same. Meanings are those of Spark's Kafka
source. A queue is "set/queue" in JSON, or just its number where only one broker set has the topic;
a `QueueRef` with an empty broker set stands for the latter until the cluster is known.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mq.client import QueueRef
from mq.client.lowlevel import ConnectionOptions, parse_servers, split_tags
from mq.errors import MqError
from mq.names import check_group, check_topic
from mq_spark.errors import MqSparkError

_log = logging.getLogger(__name__)

# The options about the connection, and the arguments of clients that they are.
_SECURITY = {
    "tls": "tls",
    "ca": "ca",
    "cert": "cert",
    "key": "key",
    "apiKey": "api_key",
    "apiKeyFile": "api_key_file",
    "namespace": "namespace",
}
SECURITY_OPTIONS = tuple(_SECURITY)
READ_OPTIONS = (
    "servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeProperties",
    "tags",
    "group",
    "zone",
    *SECURITY_OPTIONS,
    "path",
)
# What Spark puts there for itself.
_OF_SPARK = ("path", "checkpointLocation", "queryName", "outputMode", "mode")
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at this millisecond or later."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Queue by queue; EARLIEST and LATEST stand for themselves."""

    option: str
    queue_offsets: Mapping[QueueRef, int]


Position = Literal["earliest", "latest"] | AtTime | AtOffsets


@dataclass(frozen=True, slots=True)
class Topics:
    """One of the three: topics by name, those that a pattern matches, or single queues."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[QueueRef, ...] = ()

    def matches(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`starting` and `ending` are None where the user did not say."""

    connection: ConnectionOptions
    topics: Topics
    starting: Position | None = None
    ending: Position | None = None
    offsets_per_trigger_max: int | None = None
    partitions_min: int | None = None
    fail_on_data_loss: bool = True
    with_properties: bool = False
    tags: str = ""
    group: str = ""

    @property
    def exact_tags(self) -> frozenset[str] | None:
        """None: whatever the tag is."""
        return split_tags(self.tags) if self.tags else None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises MqSparkError with the name of the option."""
    reject_unknown(options, READ_OPTIONS, "reading")
    return ReadOptions(
        connection=connection_of(options),
        topics=_topics(options),
        starting=_position(options, "starting", illegal={}),
        ending=_position(options, "ending", illegal={EARLIEST: "earliest (-2)"}),
        offsets_per_trigger_max=_number(options, "maxOffsetsPerTrigger"),
        partitions_min=_number(options, "minPartitions"),
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
        with_properties=flag(options, "includeProperties", default=False),
        tags=tag_filter(options),
        group=_checked(options, "group", check_group),
    )


def check_batch(options: ReadOptions) -> None:
    """Refuses options that make no sense when a range is read once."""
    starting = options.starting
    is_latest = starting == "latest" or (
        isinstance(starting, AtOffsets) and LATEST in starting.queue_offsets.values()
    )
    if is_latest:
        raise MqSparkError(
            "startingOffsets: 'latest' (-1) leaves nothing to read in a batch: use 'earliest', "
            "offsets or startingTimestamp"
        )
    if options.ending == "earliest":
        raise MqSparkError("endingOffsets: 'earliest' leaves nothing to read: use 'latest'")
    # As Spark's Kafka source has it, so that a batch and a stream may share their options.
    if options.offsets_per_trigger_max is not None:
        _log.warning("maxOffsetsPerTrigger does nothing here: a batch has no triggers")
    if options.group:
        _log.warning("group does nothing here: only streams commit their progress")


def check_stream(options: ReadOptions) -> None:
    """Refuses options that make no sense in a stream."""
    ending = "a stream has no end; for a range use spark.read, or trigger(availableNow=True)"
    if isinstance(options.ending, AtTime):
        _reject(options.ending, "endingTimestamp", ending)
    _reject(options.ending, "endingOffsets", ending)


def _reject(value: object, option: str, why: str) -> None:
    if value is not None:
        raise MqSparkError(f"{option} cannot be used here: {why}")


# Single options; also for others that have some of the same


def reject_unknown(options: Mapping[str, str], known: Collection[str], doing: str) -> None:
    """`doing`: what they are options of."""
    names = {name.lower(): name for name in (*known, *_OF_SPARK)}
    for given in options:
        if given.lower() in names or given.lower().startswith(("spark.", "__")):
            continue
        near = difflib.get_close_matches(given.lower(), names, n=1)
        hint = f"did you mean {names[near[0]]}?" if near else f"there are: {', '.join(known)}"
        # Spark has made small letters of it.
        spelled = next((one for one in READ_OPTIONS if one.lower() == given.lower()), given)
        raise MqSparkError(f"option {spelled} is unknown for {doing} with format mq: {hint}")


def connection_of(options: Mapping[str, str]) -> ConnectionOptions:
    """Where brokers are, and how to connect to them. Files are those of the machine at hand: each
    one that reads or writes needs them.
    """
    given = text(options, "servers")
    if not given:
        raise MqSparkError("option servers is missing: where brokers are, as 'host:port,host:port'")
    named = {argument: text(options, name) for name, argument in _SECURITY.items()}
    security: dict[str, Any] = {argument: said for argument, said in named.items() if said}
    security["tls"] = flag(options, "tls", default=False)
    try:
        return ConnectionOptions(parse_servers(given), zone=text(options, "zone"), **security)
    except MqError as error:
        told = str(error)
        for name, argument in reversed(_SECURITY.items()):
            told = re.sub(rf"\b{argument}\b", name, told)
        raise MqSparkError(f"option {told}") from None


def connection_options(connection: ConnectionOptions) -> dict[str, str]:
    """The options that `connection_of` reads."""
    servers = connection.servers
    found = {
        "servers": servers if isinstance(servers, str) else ",".join(servers),
        "zone": connection.zone,
        "tls": "true" if connection.tls else "",
    }
    for name, argument in _SECURITY.items():
        if name != "tls":
            found[name] = str(getattr(connection, argument) or "")
    return {name: said for name, said in found.items() if said}


def text(options: Mapping[str, str], name: str) -> str:
    """Empty when it is not given."""
    lowered = {key.lower(): value for key, value in options.items()}
    return str(lowered.get(name.lower(), "")).strip()


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = text(options, name).lower()
    if given not in ("", "true", "false"):
        raise MqSparkError(f"{name} = {given!r}: use true or false")
    return given == "true" if given else default


def _number(options: Mapping[str, str], name: str) -> int | None:
    given = text(options, name)
    if not given:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", given) or int(given) == 0:
        raise MqSparkError(f"{name} = {given!r}: use a whole number above 0")
    return int(given)


def time_ms(options: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970, or ISO 8601; without a zone it is UTC."""
    given = text(options, name)
    if not given:
        return None
    if re.fullmatch(r"[0-9]{1,15}", given):
        return int(given)
    try:
        moment = dt.datetime.fromisoformat(given)
    except ValueError:
        raise MqSparkError(
            f"{name} = {given!r}: use milliseconds since 1970, or a time such as "
            "2026-11-16T20:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    if moment.timestamp() < 0:
        raise MqSparkError(f"{name} = {given!r}: there are no messages from before 1970")
    return round(moment.timestamp() * 1000)


def _checked(options: Mapping[str, str], name: str, check: Callable[[str], None]) -> str:
    given = text(options, name)
    if given:
        try:
            check(given)
        except MqError as error:
            raise MqSparkError(f"{name}: {error}") from None
    return given


def tag_filter(options: Mapping[str, str]) -> str:
    given = text(options, "tags")
    if given == "*":
        return ""
    if given and "" in split_tags(given):
        raise MqSparkError(f"tags = {given!r}: use tags such as 'paid || shipped'")
    return given


# Topics


def _topics(options: Mapping[str, str]) -> Topics:
    choices = ("subscribe", "subscribePattern", "assign")
    given = [name for name in choices if text(options, name)]
    if len(given) != 1:
        raise MqSparkError(
            f"give exactly one of {', '.join(choices)}: "
            f"{' and '.join(given) if given else 'none'} is given"
        )
    said = text(options, given[0])
    if given[0] == "subscribe":
        return Topics(names=topic_names(said))
    if given[0] == "subscribePattern":
        return Topics(pattern=checked_pattern(said))
    return Topics(queues=_assigned(said))


def topic_names(given: str) -> tuple[str, ...]:
    """The topics of `subscribe`."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise MqSparkError(f"subscribe = {given!r}: name one or more topics, with commas between")
    for name in names:
        _check_topic("subscribe", name)
    return names


def checked_pattern(given: str) -> str:
    """The pattern of `subscribePattern`."""
    try:
        re.compile(given)
    except re.error as error:
        raise MqSparkError(
            f"subscribePattern = {given!r} is no regular expression: {error}"
        ) from None
    return given


def _check_topic(option: str, topic: str) -> None:
    try:
        check_topic(topic)
    except MqError as error:
        raise MqSparkError(f"{option}: {error}") from None


def _assigned(given: str) -> tuple[QueueRef, ...]:
    example = '{"orders": ["set-0/0", "set-0/1"]}'
    parsed = _json_object("assign", given, example)
    found: list[QueueRef] = []
    for topic, queues in parsed.items():
        _check_topic("assign", topic)
        if not isinstance(queues, list) or not queues:
            raise MqSparkError(f"assign: {topic} needs a list of queues, as in {example}")
        found += [queue_named("assign", topic, str(queue)) for queue in queues]
    return tuple(sorted(set(found)))


# Positions


def _position(
    options: Mapping[str, str], which: Literal["starting", "ending"], illegal: Mapping[int, str]
) -> Position | None:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    said, at_ms = text(options, by_offset), time_ms(options, by_time)
    if said and at_ms is not None:
        raise MqSparkError(f"{by_offset} and {by_time} are both given: use one of them")
    if at_ms is not None:
        return AtTime(at_ms)
    match said.lower():
        case "":
            return None
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    return AtOffsets(by_offset, _queue_offsets(by_offset, said, illegal))


def _queue_offsets(option: str, given: str, illegal: Mapping[int, str]) -> dict[QueueRef, int]:
    example = '{"orders": {"set-0/0": 120, "set-0/1": -2}}'
    found: dict[QueueRef, int] = {}
    for topic, queues in _json_object(option, given, example).items():
        _check_topic(option, topic)
        if not isinstance(queues, dict) or not queues:
            raise MqSparkError(f"{option}: {topic} needs offsets of its queues, as in {example}")
        for name, queue_offset in queues.items():
            ref = queue_named(option, topic, name)
            is_number = isinstance(queue_offset, int) and not isinstance(queue_offset, bool)
            if not is_number or queue_offset < EARLIEST:
                raise MqSparkError(
                    f"{option}: {topic} {name} is {queue_offset!r}: use a queue offset, "
                    "-2 for earliest or -1 for latest"
                )
            if queue_offset in illegal:
                raise MqSparkError(
                    f"{option}: {topic} {name} is {illegal[queue_offset]}, which leaves nothing "
                    "to read"
                )
            found[ref] = queue_offset
    return found


def queue_named(option: str, topic: str, name: str) -> QueueRef:
    """ "set-0/3", or "3" with an empty set."""
    broker_set, _, number = name.rpartition("/")
    if not re.fullmatch(r"[0-9]{1,5}", number) or (not broker_set and "/" in name):
        raise MqSparkError(
            f'{option}: {name!r} is no queue of {topic}: they look like "set-0/3", or "3" '
            "where only one broker set has the topic"
        )
    return QueueRef(topic, int(number), broker_set)


def _json_object(option: str, given: str, example: str) -> dict[str, object]:
    wanted = f"use JSON such as {example}"
    if option != "assign":
        wanted = f"use earliest, latest or JSON such as {example}"
    try:
        parsed = json.loads(given)
    except ValueError:
        raise MqSparkError(f"{option} = {given!r}: {wanted}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise MqSparkError(f"{option} = {given!r}: {wanted}")
    return parsed
