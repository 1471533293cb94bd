"""Policies: one line each, which allows or denies actions on resources to a user or a role.

    allow publish,describe topic orders-*
    deny  consume          group billing from 10.0.0.0/8

Nothing is allowed that no line allows, and a line that denies wins over every line that allows,
whatever the order and however exact they are. A name that ends with `*` stands for all names that
start so; there are no other patterns. What may be published, consumed, created, altered or deleted
may be described.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from mq import names
from mq.errors import IllegalPolicy

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Action(enum.StrEnum):
    PUBLISH = "publish"
    # Also to read bodies: browse, query, get, dead letters.
    CONSUME = "consume"
    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"


class Kind(enum.StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Resource(NamedTuple):
    kind: Kind
    name: str

    def __str__(self) -> str:
        """As in a sentence."""
        return f"{self.kind} {self.name}"

    @property
    def subject(self) -> str:
        """As records of the audit trail and commands write it."""
        return f"{self.kind}:{self.name}"


def topic_resource(topic: str) -> Resource:
    """Retries and dead letters of a group belong to the group; the broker's own topics to the
    cluster, so that `topic *` does not reach them.
    """
    for prefix in (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return Resource(Kind.GROUP, topic.removeprefix(prefix))
    kind = Kind.CLUSTER if names.is_internal_topic(topic) else Kind.TOPIC
    return Resource(kind, topic)


def group_resource(group: str) -> Resource:
    return Resource(Kind.GROUP, group)


class Policy(NamedTuple):
    is_allow: bool
    actions: frozenset[Action]
    kind: Kind
    # As written: a name, or a prefix and `*`.
    pattern: str
    network: Network | None = None

    def __str__(self) -> str:
        """The line in its one spelling: `parse` gives the same policy back. All actions are `*`."""
        named = [one for one in Action if one in self.actions]
        actions = "*" if len(named) == len(Action) else ",".join(named)
        source = f" from {self.network}" if self.network is not None else ""
        return (
            f"{'allow' if self.is_allow else 'deny'} {actions} {self.kind} {self.pattern}{source}"
        )

    def covers(self, action: Action, resource: Resource, address: str) -> bool:
        """`address`: of the client, without a port; empty if it is not known, which no network
        has.
        """
        return (
            self.kind == resource.kind
            and self._names(action)
            and self._matches(resource.name)
            and (self.network is None or _is_in(address, self.network))
        )

    def _names(self, action: Action) -> bool:
        # Every action that is allowed allows to describe; to deny one says nothing of that.
        return action in self.actions or (self.is_allow and action == Action.DESCRIBE)

    def _matches(self, name: str) -> bool:
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern


def _is_in(address: str, network: Network) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found) in network


class Ruling(NamedTuple):
    is_allowed: bool
    # The line that decided, and whose it is; None: no line allows it.
    policy: Policy | None = None
    subject: str = ""


def decide(
    policies: Iterable[tuple[str, Policy]], action: Action, resource: Resource, address: str = ""
) -> Ruling:
    """`policies` are lines with the user or role that each belongs to, in any order."""
    allowed = Ruling(is_allowed=False)
    for subject, policy in policies:
        if policy.covers(action, resource, address):
            if not policy.is_allow:
                return Ruling(is_allowed=False, policy=policy, subject=subject)
            if not allowed.is_allowed:
                allowed = Ruling(is_allowed=True, policy=policy, subject=subject)
    return allowed


_LINE = re.compile(
    r"\s*(?P<effect>\S+)\s+(?P<actions>\S+)\s+(?P<kind>\S+)\s+(?P<name>\S+)"
    r"(?:\s+from\s+(?P<network>\S+))?\s*"
)
_ACTIONS, _KINDS = frozenset(map(str, Action)), frozenset(map(str, Kind))
_FORM = "allow|deny ACTIONS topic|group|cluster NAME|PREFIX*|* [from CIDR]"


def parse(text: str) -> Policy:
    """Raises IllegalPolicy. `*` as actions stands for all of them."""
    found = _LINE.fullmatch(text[:1_000])
    if found is None:
        raise IllegalPolicy(f"{text[:200]!r} is no policy: it has the form {_FORM}")
    effect, actions, kind, pattern, network = found.groups()
    if effect not in ("allow", "deny"):
        raise IllegalPolicy(f"a policy starts with allow or deny, not with {effect[:50]!r}")
    if kind not in _KINDS:
        raise IllegalPolicy(f"{kind[:50]!r} is none of {', '.join(Kind)}: a policy is {_FORM}")
    literal = pattern.removesuffix("*")
    # A prefix may end with a dot: `orders.*`.
    name = literal if literal == pattern else literal.removesuffix(".")
    if (literal and not names.is_legal_name(name[: names.NAME_CHARACTERS_MAX + 1])) or (
        literal.startswith("%") and kind != Kind.CLUSTER
    ):
        raise IllegalPolicy(
            f"{pattern[:200]!r} is no name or prefix of a {kind}: letters, digits and .%|_-, and * "
            "at the end alone; retries and dead letters belong to their group"
        )
    return Policy(effect == "allow", _actions(actions), Kind(kind), pattern, _network(network))


def _actions(text: str) -> frozenset[Action]:
    if text == "*":
        return frozenset(Action)
    for one in text.split(","):
        if one not in _ACTIONS:
            raise IllegalPolicy(f"{one[:50]!r} is no action: they are {', '.join(Action)}, or *")
    return frozenset(Action(one) for one in text.split(","))


def _network(text: str | None) -> Network | None:
    if text is None:
        return None
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise IllegalPolicy(
            f"{text[:50]!r} is no network such as 10.0.0.0/8: {str(error)[:200]}"
        ) from None
