"""Changes of users and policies, short to write, and the audit trail as a reader sees it."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mq.access import keys, passwords
from mq.broker.security.changes import ChangeRequest, PlannedChange, password_id, planned
from mq.broker.state.access import Access
from mq.names import AUDIT_TOPIC
from mq.store.batch import message_of_frame
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.security_pb2 import (
    API_KEY,
    PASSWORD,
    AccessChange,
    AccessNamespace,
    AccessPolicy,
    Credential,
    Quota,
    User,
)

if TYPE_CHECKING:
    from tests.support.consensus import Node

NOW_MS = 1_000_000


class By(NamedTuple):
    user: str = "root"
    credential: str = "rootkeyrootk"
    address: str = "10.0.0.9"


ROOT = By()


def user(name: str, *roles: str, **fields: Any) -> AccessChange:
    return AccessChange(put_user=User(name=name, roles=roles, **fields))


def key(owner: str, key_id: str = "aaaaaaaaaaaa", phrase: str = "s", **fields: Any) -> AccessChange:
    return AccessChange(
        put_credential=Credential(
            id=key_id,
            user=owner,
            type=fields.pop("type", API_KEY),
            proof=fields.pop("proof", keys.digest(phrase)),
            **fields,
        )
    )


@functools.cache
def hashed(password: str) -> bytes:
    """Costs half a second."""
    return passwords.hashed(password)


def password(owner: str, text: str = "correct horse") -> AccessChange:
    proof = hashed(text)
    return AccessChange(
        put_credential=Credential(id=password_id(owner), user=owner, type=PASSWORD, proof=proof)
    )


def policy(subject: str, line: str) -> AccessChange:
    return AccessChange(put_policy=AccessPolicy(subject=subject, line=line))


def drop_policy(subject: str, line: str) -> AccessChange:
    return AccessChange(drop_policy=AccessPolicy(subject=subject, line=line))


def quota(subject: str, **limits: int) -> AccessChange:
    return AccessChange(put_quota=Quota(subject=subject, **limits))


def namespace(name: str) -> AccessChange:
    return AccessChange(put_namespace=AccessNamespace(name=name))


def drop(**what: str) -> AccessChange:
    return AccessChange(**what)  # type: ignore[arg-type]


def plan(access: Access, *changes: AccessChange, **request: Any) -> PlannedChange:
    """Decided, not made."""
    now_ms, box = request.pop("now_ms", NOW_MS), request.pop("box", None)
    has_topics = request.pop("has_topics", lambda _: False)
    wanted = ChangeRequest(changes, request.pop("by", ROOT), **request)
    return planned(access, wanted, now_ms, box, has_topics)


def make(access: Access, *changes: AccessChange, **request: Any) -> PlannedChange:
    done = plan(access, *changes, **request)
    if done.changes:
        access.change(done.changes)
    return done


def set_up(*changes: AccessChange) -> Access:
    """With a superuser that has a key."""
    access = Access()
    make(access, user("root", "superuser"), key("root", "rootkeyrootk"), *changes)
    return access


def trail(node: Node) -> list[dict[str, Any]]:
    """All records, the oldest first."""
    found: list[dict[str, Any]] = []
    result = node.store.read(AUDIT_TOPIC, 0, 0, messages_max=1_000, bytes_max=1 << 22)
    for run in result.runs:
        at = 0
        for size in run.sizes.tolist():
            message = Message.FromString(bytes(message_of_frame(run.frames[at : at + size])))
            at += size
            found.append({"tag": message.tag, "keys": [*message.keys], **json.loads(message.body)})
    return found
