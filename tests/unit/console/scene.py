"""A console whose user and brokers are made up: an Admin that answers from a table and records what
it was asked for, and rights that a test chooses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from google.protobuf.message import Message
from starlette.testclient import TestClient

from mq.access.policies import Action, Kind
from mq.access.views import AccessView
from mq.client.admin.calls import Answers
from mq.console.app import make_app
from mq.console.callers import Caller
from mq.console.sampler import Node, Sample
from mq.console.series import History
from mq.console.sessions import Session
from mq.console.settings import ConsoleSettings
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1 import cluster_pb2, security_pb2

BASE = "http://127.0.0.1:8080"
# Without a slash: no name has one, and paths of pages do.
HOSTILE = "<script>alert(1)<b>\"'&"
ESCAPED = "&lt;script&gt;alert(1)&lt;b&gt;"


def filled(made: type[Any], text: str = HOSTILE) -> Any:
    """A message with something in every field."""
    message = made()
    _fill(message, text)
    return message


def _fill(message: Message, text: str) -> None:
    for field in message.DESCRIPTOR.fields:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            is_text = inner.fields_by_name["value"].type == field.TYPE_STRING
            getattr(message, field.name)["set-0"] = text if is_text else 7
        elif inner is not None:
            held = getattr(message, field.name)
            _fill(held.add() if field.is_repeated else held, text)
        elif field.is_repeated:
            getattr(message, field.name).append(_value(field, text))
        else:
            setattr(message, field.name, _value(field, text))


def _value(field: Any, text: str) -> Any:
    if field.type == field.TYPE_BYTES:
        return text.encode()
    if field.type == field.TYPE_STRING:
        return text
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values[-1].number
    return field.type == field.TYPE_BOOL or 7


class RecordedAdmin:
    """Answers by method; an exception is raised."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **fields: Any) -> Any:
            self.calls.append((name, args, fields))
            answer = self.answers[name]
            if callable(answer):
                answer = answer(*args, **fields)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, fields) for one, args, fields in self.calls if one == name]


class FakeSampler:
    period_s = 5.0

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.history = History(1440)
        for at, lag in enumerate((9.0, 8.0, 7.0, 6.0)):
            self.history.add(at * 5_000, {("lag", one.group): lag for one in sample.groups})

    async def first(self) -> Sample:
        return self.sample

    async def poll(self) -> Sample:
        return self.sample


class FakeSpans:
    async def first_stored_at_ms(self, starts: Mapping[Any, int]) -> dict[Any, int]:
        return dict.fromkeys(starts, 1_783_850_000_000)


class FakeCaller:
    def __init__(self, admin: RecordedAdmin, sample: Sample, *, may: bool, roles: str = "") -> None:
        self.admin = admin
        self.sampler = FakeSampler(sample)
        self.spans = FakeSpans()
        self._may = may
        self.session: Session | None = None
        if roles:
            self.session = Session("id", "root", "key", 1e12, 0.0, tuple(roles.split()))
        self.asked: list[tuple[Action, Kind, str]] = []

    @property
    def user(self) -> str:
        return self.session.user if self.session else ""

    async def may(self, action: Action, kind: Kind, name: str) -> bool:
        self.asked.append((action, kind, name))
        return self._may


def sample(text: str = HOSTILE) -> Sample:
    broker_set = cluster_pb2.BrokerSet(name=text, leader_id=text, term=3)
    status = filled(pb.BrokerStatusResponse, text)
    node = Node(text, cluster_pb2.NodeRoute(node_id=text, address="h:1"), True, status)
    other = Node(text, cluster_pb2.NodeRoute(node_id="n2"), False, error=text)
    return Sample(
        1_783_850_000_000,
        text,
        [broker_set],
        [node, other],
        [filled(pb.TopicSummary, text)],
        [filled(pb.GroupSummary, text)],
        counters={},
    )


def answers(text: str = HOSTILE) -> dict[str, Any]:
    """Of every method that the screens use for reading."""
    letters = filled(pb.ListDeadLettersResponse, text)
    letters.messages[0].message_id = letters.resent_ids[0] = "set-0:12"

    def letters_from(_group: str, at: Any, *_: Any) -> Any:
        return letters if at == 0 else pb.ListDeadLettersResponse(next_offsets={"set-0": 9})

    stored = filled(pb.StoredMessage, text)
    stored.message_id, stored.message.compression = "set-0:7", 0
    record = filled(pb.StoredMessage, text)
    record.message.compression = 0
    record.message.body = (
        b'{"at_ms": 1, "user": "<script>alert(1)</script>", "what": "denied", "subject": '
        b'"user:<b>", "after": {"<i>": "<script>alert(1)</script>"}}'
    )
    trail = pb.DescribeTopicResponse(queues=[pb.QueueStats(broker_set="set-0", end=1)])
    state = filled(security_pb2.AccessState, text)
    return {
        "describe_group": filled(pb.DescribeGroupResponse, text),
        "alter_group": filled(pb.GroupSettings, text),
        "list_leases": filled(pb.ListLeasesResponse, text),
        "count_dead_letters": Answers([filled(pb.DeadLetterCount, text)]),
        "list_dead_letters": letters_from,
        "reset_offsets": filled(pb.ResetOffsetsResponse, text),
        "list_scheduled": filled(pb.ListScheduledResponse, text),
        "count_scheduled": filled(pb.CountScheduledResponse, text),
        "list_transactions": filled(pb.ListTransactionsResponse, text),
        "trace_message": filled(pb.MessageTrace, text),
        "get_message": stored,
        "query_messages": Answers([filled(pb.StoredMessage, text) for _ in range(2)]),
        "get_config": [filled(pb.ConfigOption, text)],
        "list_clients": filled(pb.ListClientsResponse, text),
        "describe_access": AccessView("set-0", {"set-0": state}, {"set-0": b""}),
        "check_access": {text: filled(security_pb2.CheckAccessResponse, text)},
        "describe_topic": trail,
        "browse_messages": pb.MessageList(messages=[record], next_offset=8),
    }


class Console:
    def __init__(self, client: TestClient, caller: FakeCaller) -> None:
        self._client = client
        self.caller = caller
        self.admin = caller.admin

    def get(self, path: str) -> Any:
        return self._client.get(path)

    def post(self, path: str, **fields: Any) -> Any:
        page = self._client.get("/login").text
        found = re.search(r'name="form_token" value="([^"]+)"', page)
        assert found is not None
        data = {"form_token": found[1], **fields}
        return self._client.post(path, data=data, headers={"origin": BASE})


@contextmanager
def console(
    changed: Mapping[str, Any] | None = None,
    *,
    may: bool = True,
    roles: str = "superuser",
    text: str = HOSTILE,
) -> Iterator[Console]:
    admin = RecordedAdmin({**answers(text), **(changed or {})})
    caller = FakeCaller(admin, sample(text), may=may, roles=roles)
    app = make_app(ConsoleSettings("127.0.0.1:1", timeout_s=0.2))

    async def everybody() -> Caller:
        await asyncio.sleep(0)
        return cast("Caller", caller)

    app.state.callers.everybody = everybody
    with TestClient(
        app, base_url=BASE, follow_redirects=False, raise_server_exceptions=False
    ) as client:
        yield Console(client, caller)
