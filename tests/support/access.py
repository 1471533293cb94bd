"""What broker sets have of users, keys, policies, quotas and namespaces, for tests of what is shown
of it.

view = access_view(alice(), policies={"user:alice": ["allow publish topic x"]})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mq.access.views import AccessView, view_of
from mq.broker.state.access import Access
from mq.wire.v1 import security_pb2 as pb

CREATED_AT_MS = 1_783_850_000_123


def user(name: str, **fields: Any) -> pb.AccessChange:
    return pb.AccessChange(put_user=pb.User(name=name, created_at_ms=CREATED_AT_MS, **fields))


def credential(key_id: str, owner: str, **fields: Any) -> pb.AccessChange:
    given = {"type": pb.API_KEY, "created_at_ms": CREATED_AT_MS, **fields}
    return pb.AccessChange(put_credential=pb.Credential(id=key_id, user=owner, **given))


def policy(subject: str, line: str) -> pb.AccessChange:
    return pb.AccessChange(put_policy=pb.AccessPolicy(subject=subject, line=line))


def quota(subject: str, **fields: Any) -> pb.AccessChange:
    return pb.AccessChange(put_quota=pb.Quota(subject=subject, **fields))


def namespace(name: str) -> pb.AccessChange:
    return pb.AccessChange(put_namespace=pb.AccessNamespace(name=name, created_at_ms=CREATED_AT_MS))


def access_view(*changes: pb.AccessChange, source: str = "", **others: Any) -> AccessView:
    """Of set-0 after these changes; `others` are those of further sets."""
    sets: Mapping[str, Iterable[pb.AccessChange]] = {"set-0": changes, **others}
    answers = {}
    for name, made in sets.items():
        access = Access()
        access.change(made)
        state = access.encode()
        for one in state.credentials:
            one.ClearField("proof")
        answers[name.replace("_", "-")] = pb.DescribeAccessResponse(
            state=state, digest=access.digest()
        )
    return view_of(answers, source)
