"""Names: which ones are legal for topics and groups, which are the broker's own, and how a message
is called.

Names of topics become directories, so a name that is let in here is safe as a file name.

A namespace is the part of a name before its first `%`: `acme%orders`, `%RETRY%acme%billing`. Inside
of it a name is *local*: `orders`, `%RETRY%billing`; a local name has no other `%`. The broker knows
full names alone.
"""

from __future__ import annotations

import difflib
import functools
import heapq
import itertools
import re
from collections.abc import Iterable

from mq.errors import IllegalGroup, IllegalRequest, IllegalTopic

NAME_CHARACTERS_MAX = 127
QUEUE_ID_MAX = 65_535

RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX = "%RETRY%", "%DLQ%", "%SYS%"
# Messages that wait for a time, half messages, those whose transaction was never ended, and the
# record of changes and refusals.
SCHEDULE_TOPIC = f"{SYSTEM_PREFIX}SCHEDULE"
HALF_TOPIC = f"{SYSTEM_PREFIX}HALF"
GIVE_UP_TOPIC = f"{SYSTEM_PREFIX}GIVE_UP"
AUDIT_TOPIC = f"{SYSTEM_PREFIX}AUDIT"
# Ids of producers that write what can be made again, as sinks of Spark do: their numbers only grow.
SINK_PREFIX = "%SINK%"
_GROUP_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_READABLE = frozenset((GIVE_UP_TOPIC, AUDIT_TOPIC))

# Full names are as long as others: this leaves 63 characters for the local name at least.
NAMESPACE_CHARACTERS_MAX = 63
_NAMESPACE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAMESPACE_CHARACTERS_MAX - 1}}}")
# A topic that `check_topic` refuses: in place of one that a caller with a namespace may not name.
OUTSIDE_TOPIC = "!"

_COMPARED_MAX, _LIKELY_MAX, _SIMILAR_MAX, _SIMILAR_RATIO = 4_000, 10, 3, 0.65

_DIGITS = re.compile(r"[0-9]{1,19}")
# A dot at the end would be that of a sentence, one at the start would hide a directory.
_NAME = re.compile(rf"(?!\.|.*%\.)[A-Za-z0-9%|_.-]{{1,{NAME_CHARACTERS_MAX}}}(?<!\.)")
_LEGAL = f"use 1 to {NAME_CHARACTERS_MAX} of letters, digits and .%|_-, no dot first or last"

# What a filter can ask for: no spaces, which surround tags there, no |, which stands between them,
# and not the *, which is all of them. A filter has at most so many characters.
TAG_CHARACTERS_MAX = 4096
_TAG = re.compile(rf"(?!\*\Z)[^\s|]{{0,{TAG_CHARACTERS_MAX}}}")


@functools.lru_cache(maxsize=65_536)
def is_legal_name(name: str) -> bool:
    """Letters, digits and .%|_- only, 1 to 127 of them, without a dot first or last."""
    return _NAME.fullmatch(name) is not None


def check_topic(topic: str) -> None:
    """Raises IllegalTopic unless the topic can be stored."""
    # A group's own topics are called after it, however long its name is.
    name = topic
    if topic.startswith(_GROUP_PREFIXES):
        name = topic.split("%", 2)[2] or topic
    # What is too long must not get into the cache: callers send it, and memory is ours.
    if len(name) > NAME_CHARACTERS_MAX or not is_legal_name(name):
        if topic == OUTSIDE_TOPIC:
            raise IllegalTopic(_OUTSIDE)
        raise IllegalTopic(f"topic {topic[:200]!r} is not legal: {_LEGAL}")


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that may have been meant, the likeliest first, and of the same
    namespace: no text names what is in another one. Names that are known beyond the first few
    thousand are not looked at.
    """
    head = name[: name.find("%") + 1]
    name = name.removeprefix(head)
    pairs = _pairs(name)
    same = (one.removeprefix(head) for one in known if one[: one.find("%") + 1] == head)
    candidates = (
        (len(pairs & _pairs(one)) / max(len(pairs), len(one)), one)
        for one in itertools.islice(same, _COMPARED_MAX)
    )
    # An exact comparison costs a hundred times as much: for the few that share most.
    nearest = [one for shared, one in heapq.nlargest(_LIKELY_MAX, candidates) if shared > 0]
    lower = {one.lower(): one for one in nearest}
    found = difflib.get_close_matches(name.lower(), lower, _SIMILAR_MAX, _SIMILAR_RATIO)
    return [head + lower[one] for one in found]


def did_you_mean(similar: Iterable[str]) -> str:
    """To go on with after "create it": empty without such names."""
    names = " or ".join(similar)
    return f", or did you mean {names}?" if names else ""


def _pairs(name: str) -> set[str]:
    """Its neighbouring characters, whatever their case."""
    text = name.lower()
    return {text[at : at + 2] for at in range(len(text) - 1)} or {text}


def check_group(group: str) -> None:
    """Raises IllegalGroup unless consumers may form a group of this name."""
    if len(group) > NAME_CHARACTERS_MAX or not is_legal_name(group) or group.startswith("%"):
        raise IllegalGroup(f"group {group[:200]!r} is not legal: {_LEGAL}, and no % at the start")


# -- namespaces -----------------------------------------------------------------------------------

_OUTSIDE = (
    "a name with % in it is not legal in a namespace: topics and groups there have plain names, "
    "and %RETRY% and %DLQ% stand before a group"
)


def check_namespace(namespace: str) -> None:
    """Raises IllegalRequest unless users can be bound to it."""
    if not _NAMESPACE.fullmatch(namespace):
        raise IllegalRequest(
            f"namespace {namespace[:200]!r} is not legal: use 1 to {NAMESPACE_CHARACTERS_MAX} of "
            "letters, digits and _-, a letter or digit first"
        )


def namespace_of(name: str) -> str:
    """Of a full name of a topic or group; empty: it is in none, or the broker's own."""
    if name.startswith(_GROUP_PREFIXES):
        name = name.split("%", 2)[2]
    head, separator, _ = name.partition("%")
    return head if separator else ""


def full_topic(namespace: str, topic: str) -> str:
    """Raises IllegalTopic if there is no such topic in a namespace. An empty name stays empty."""
    for prefix in _GROUP_PREFIXES:
        if topic.startswith(prefix) and len(topic) > len(prefix):
            return prefix + _full(namespace, topic.removeprefix(prefix), IllegalTopic)
    return _full(namespace, topic, IllegalTopic)


def full_group(namespace: str, group: str) -> str:
    """As `full_topic`; IllegalGroup."""
    return _full(namespace, group, IllegalGroup)


def _full(namespace: str, name: str, error: type[IllegalTopic | IllegalGroup]) -> str:
    if "%" in name:
        raise error(f"{name[:200]!r}: {_OUTSIDE}")
    characters_max = NAME_CHARACTERS_MAX - len(namespace) - 1
    if len(name) > characters_max:
        raise error(
            f"{name[:200]!r} is not legal: a name in namespace {namespace} has 1 to "
            f"{characters_max} of letters, digits and .|_-, no dot first or last"
        )
    return f"{namespace}%{name}" if name else ""


def local_name(namespace: str, name: str) -> str | None:
    """The local name for a full one of a topic or group; None: it is not in this namespace."""
    prefix = next((one for one in _GROUP_PREFIXES if name.startswith(one)), "")
    full = name.removeprefix(prefix)
    local = full.removeprefix(f"{namespace}%")
    return prefix + local if local and local != full and "%" not in local else None


def full_producer_id(namespace: str, producer_id: str) -> str:
    """Ids are no names: any text, and their prefix stays in front."""
    prefix = SINK_PREFIX if producer_id.startswith(SINK_PREFIX) else ""
    return f"{prefix}{namespace}%{producer_id.removeprefix(prefix)}" if producer_id else ""


def local_producer_id(namespace: str, producer_id: str) -> str | None:
    prefix = SINK_PREFIX if producer_id.startswith(SINK_PREFIX) else ""
    full = producer_id.removeprefix(prefix)
    local = full.removeprefix(f"{namespace}%")
    return prefix + local if local != full else None


# -- tags -----------------------------------------------------------------------------------------


def is_legal_tag(tag: str) -> bool:
    """One word that a filter can ask for, or empty: no tag."""
    return _TAG.fullmatch(tag) is not None


def check_tag(tag: str) -> None:
    """Raises IllegalRequest unless consumers can filter by it."""
    if not is_legal_tag(tag):
        raise IllegalRequest(
            f"tag {tag[:200]!r} is not legal: no filter could ask for it; use one word of at most "
            f"{TAG_CHARACTERS_MAX} characters, without spaces and |, and not * alone"
        )


def is_internal_topic(topic: str) -> bool:
    """Written by the broker alone."""
    return topic.startswith("%")


def is_readable_topic(topic: str) -> bool:
    """Retries, dead letters, given-up transactions and the audit trail can be read by clients that
    may, other internal topics by none.
    """
    return not is_internal_topic(topic) or topic.startswith(_GROUP_PREFIXES) or topic in _READABLE


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def message_id(broker_set: str, log_offset: int) -> str:
    """The place of the message, which is found in one read."""
    return f"{broker_set}:{log_offset}"


def parse_message_id(text: str) -> tuple[str, int]:
    """Broker set and log offset. IllegalRequest when it is no id of a message."""
    broker_set, _, digits = text.rpartition(":")
    # isdecimal lets digits of other scripts through, and int() reads them.
    if not is_legal_name(broker_set) or not _DIGITS.fullmatch(digits):
        raise IllegalRequest(
            f"{text[:200]!r} is no message id: they look like set-0:12345, as a send returned it"
        )
    return broker_set, int(digits)
