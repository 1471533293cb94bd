"""Every method of every service, by callers that nobody knows, that may do nothing, that may do one
thing, and that may do everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor

from mq.access import keys
from mq.admin.control import Control
from mq.errors import PermissionDenied
from mq.http2.calls import CallAborted
from mq.rpc import services
from mq.rpc.access import Rules, any_caller, open_to_all
from mq.rpc.clients import Clients
from mq.rpc.context import StreamHandler
from mq.rpc.methods import Dispatcher
from mq.rpc.producer import ProducerService
from mq.rpc.status import CODE_KEY
from mq.store.identity import Identity
from mq.wire.v1 import message_pb2, transaction_pb2
from mq.wire.v1.admin_pb2 import GetMessageRequest, ListTopicsResponse
from mq.wire.v1.consumer_pb2 import (
    ReceiveRequest,
    SubscribeRequest,
    SubscribeStart,
    Subscription,
)
from mq.wire.v1.producer_pb2 import PublishRequest, PublishResponse, SendRequest
from mq.wire.v1.security_pb2 import API_KEY, AccessChange, AccessPolicy, Credential, User
from mq.wire.v1.status_pb2 import Code
from tests.support.consensus import Node, on_loop, soon, turns

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from mq.rpc.context import Context
    from mq.rpc.methods import Method

# Lists, and what is found by an id: they are checked when it is known what is found.
CHECKED_BY_THE_SERVICE = {
    *("ListTopics", "ListGroups", "ListTransactions", "GetMessage", "TraceMessage"),
    *("WhoAmI", "ChangeAccess", "DescribeAccess", "CheckAccess"),
}


class FakeCall:
    """A call that comes with a key, and the messages of a stream."""

    address = "ipv4:10.0.0.7:50000"
    is_by_tls = False

    def __init__(self, key: str | None, requests: list[bytes] | None = None) -> None:
        self.caller: Any = None
        self._key = key
        self._requests = requests or []
        self.written: list[bytes] = []
        self.ended: asyncio.Future[bytes | str] = asyncio.get_running_loop().create_future()

    def header(self, name: str) -> str | None:
        return f"Bearer {self._key}" if name == "authorization" and self._key else None

    def certificate_names(self) -> tuple[str, ...]:
        return ()

    def peer(self) -> str:
        return self.address

    def is_encrypted(self) -> bool:
        return self.is_by_tls

    def time_remaining(self) -> None:
        return None

    def add_done_callback(self, _: object) -> None:
        pass

    async def read(self, *_: object) -> bytes | None:
        if self._requests:
            return self._requests.pop(0)
        await self.ended
        return None

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def try_write(self, message: bytes) -> bool:
        self.written.append(message)
        return True

    def reply(self, message: bytes) -> None:
        self.ended.set_result(message)

    def finish(self, _: object, __: str, metadata: Any) -> None:
        self.ended.set_result(str(dict(metadata)[CODE_KEY]))


class Scene:
    """A node that requires identities, with users root, alice, who may do nothing, and their
    keys.
    """

    def __init__(self, mode: str = "required") -> None:
        self.node = Node(auth=mode)
        self.keys: dict[str, str] = {}
        control = Control(self.node.broker, cast("Any", None), cast("Any", None))
        self.rules = Rules(self.node.broker)
        producer = ProducerService(self.node.broker, "set-0", self.rules)
        identity = Identity("mq", "set-0", "node-0")
        clients = Clients(self.node.broker, [])
        table = services.table(self.node.broker, identity, control, self.rules, producer, clients)
        self.methods = {
            f"{one.descriptor.name}/{row.name}": row for one in table for row in one.methods
        }
        broker = self.node.broker
        self.dispatcher = Dispatcher(
            broker.leadership, broker.gate, lambda *_: None, self.rules.explained
        )

    @classmethod
    async def begin(cls, mode: str = "required") -> Scene:
        scene = cls(mode)
        await scene.user("root", roles=["superuser"])
        await scene.user("alice")
        await scene.node.topic("orders")
        return scene

    async def user(self, name: str, *lines: str, **fields: Any) -> None:
        key = keys.new()
        self.keys[name] = key.text
        credential = Credential(id=key.id, user=name, type=API_KEY, proof=keys.digest(key.secret))
        await self.node.change_access(
            AccessChange(put_user=User(name=name, **fields)),
            AccessChange(put_credential=credential),
            *(
                AccessChange(put_policy=AccessPolicy(subject=f"user:{name}", line=line))
                for line in lines
            ),
        )

    async def call(self, name: str, user: str | None, *requests: bytes) -> str:
        """The code of its end; empty: it was served, or a stream goes on."""
        service, _, _ = name.partition("/")
        handler = self.dispatcher.handler(service, self.methods[name])
        call = FakeCall(self.keys.get(user or ""), list(requests))
        try:
            if isinstance(handler, StreamHandler):
                task = asyncio.ensure_future(handler.serve(cast("Context", call)))
                await turns(20)
                if task.done():
                    task.result()
                else:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                return _codes(call.written)
            answer = handler.serve(requests[0], cast("Context", call))
            if inspect.isawaitable(answer):
                await soon(answer)
            elif answer is None:
                ended = await soon(call.ended)
                return ended if isinstance(ended, str) else ""
        except CallAborted as aborted:
            return str(dict(aborted.metadata)[CODE_KEY])
        return ""


def _codes(written: list[bytes]) -> str:
    for message in written:
        for result in PublishResponse.FromString(message).results:
            if result.code:
                return Code.Name(result.code)
    return ""


def filled(request: type[Message]) -> bytes:
    """A request about topic orders and group billing, wherever it may name one."""
    message = request()
    _fill(message)
    return message.SerializeToString()


def _fill(message: Any) -> None:
    known = {"topic": "orders", "group": "billing", "topics": ["orders"], "member_id": "m"}
    for field in message.DESCRIPTOR.fields:
        if field.name in known and field.type == FieldDescriptor.TYPE_STRING:
            value = known[field.name]
            if isinstance(value, list):
                getattr(message, field.name).extend(value)
            else:
                setattr(message, field.name, value)
        elif field.name in ("subscriptions", "positions"):
            _fill(getattr(message, field.name).add())
        elif field.name == "messages" and message.DESCRIPTOR.name == "RetryRequest":
            _fill(message.messages.add())


@on_loop
async def test_no_method_but_those_open_to_all_serves_a_caller_that_is_not_known() -> None:
    scene = await Scene.begin()
    for name, method in scene.methods.items():
        if method.rule is not open_to_all:
            data = b"" if method.request is None else filled(method.request)
            assert await scene.call(name, None, data) == "UNAUTHENTICATED", name


def is_checked_by_table(method: Method) -> bool:
    return method.request is not None and method.rule is not open_to_all


@on_loop
async def test_every_method_denies_a_caller_without_policies() -> None:
    scene = await Scene.begin()
    lists = set()
    for name, method in scene.methods.items():
        if method.rule is any_caller and method.request is not None:
            lists.add(method.name)
        elif is_checked_by_table(method) and "Transaction" not in name:
            assert method.request is not None
            code = await scene.call(name, "alice", filled(method.request))
            assert code == "PERMISSION_DENIED", name
    assert lists == CHECKED_BY_THE_SERVICE


@on_loop
async def test_a_superuser_is_denied_nothing() -> None:
    scene = await Scene.begin()
    caller = scene.node.broker.gate.identify(f"Bearer {scene.keys['root']}", (), "10.0.0.7")
    for method in scene.methods.values():
        if is_checked_by_table(method) and "Transaction" not in method.name:
            assert method.request is not None
            method.rule(caller, method.request.FromString(filled(method.request)))


# What a caller may do with one line alone; everything else stays denied.
ONE_LINE = [
    (
        "allow publish topic orders",
        {"Send", "Recall", "Route", "DescribeTopic", "FindOffsets", "ListScheduled"},
    ),
    (
        "allow consume topic orders",
        {
            *("Pull", "QueryMessages", "BrowseMessages", "Route", "DescribeTopic", "FindOffsets"),
            "ListScheduled",
        },
    ),
    (
        "allow consume group billing",
        {
            *("Heartbeat", "Leave", "CommitOffsets", "QueryOffsets", "Ack", "Nack"),
            *("ChangeInvisible", "DescribeGroup", "ListDeadLetters", "ListLeases"),
        },
    ),
    ("allow describe topic *", {"Route", "DescribeTopic", "FindOffsets", "ListScheduled"}),
    ("allow describe group *", {"QueryOffsets", "DescribeGroup", "ListLeases"}),
    (
        "allow create topic orders",
        {"CreateTopic", "Route", "DescribeTopic", "FindOffsets", "ListScheduled"},
    ),
    (
        "allow delete topic orders",
        {"DeleteTopic", "Route", "DescribeTopic", "FindOffsets", "ListScheduled"},
    ),
    (
        "allow alter topic orders",
        {
            *("AlterTopic", "Route", "DescribeTopic", "FindOffsets", "ListScheduled"),
            "RecallScheduled",
        },
    ),
    ("allow alter cluster members", {"AddMember", "RemoveMember", "TransferLeadership"}),
    ("allow describe cluster *", {"BrokerStatus", "GetConfig", "CountScheduled", "ListClients"}),
]


@pytest.mark.parametrize(("line", "allowed"), ONE_LINE)
@on_loop
async def test_a_line_allows_its_methods_and_no_others(line: str, allowed: set[str]) -> None:
    scene = await Scene.begin()
    await scene.user("bob", line)
    gate = scene.node.broker.gate
    caller = gate.identify(f"Bearer {scene.keys['bob']}", (), "10.0.0.7")
    found = set()
    for method in scene.methods.values():
        if not is_checked_by_table(method) or method.rule is any_caller:
            continue
        if "Transaction" in method.name:
            continue
        assert method.request is not None
        with contextlib.suppress(PermissionDenied):
            method.rule(caller, method.request.FromString(filled(method.request)))
            found.add(method.name)
    assert found == allowed


@on_loop
async def test_each_batch_of_a_stream_is_checked_for_its_topic() -> None:
    scene = await Scene.begin()
    await scene.user("bob", "allow publish topic orders")
    await scene.node.topic("secrets")

    def publish(topic: str, **fields: Any) -> bytes:
        batch = message_pb2.Batch(topic=topic, messages=[message_pb2.Message(body=b"x")], **fields)
        return PublishRequest(request_id=1, batches=[batch]).SerializeToString()

    for fields in ({}, {"producer_id": "p", "sequence": 1}):
        name = "ProducerService/Publish"
        assert await scene.call(name, "bob", publish("orders", **fields)) == ""
        assert await scene.call(name, "bob", publish("secrets", **fields)) == "PERMISSION_DENIED"
        assert await scene.call(name, "bob", publish("new", **fields)) == "PERMISSION_DENIED"
    assert scene.node.ends("secrets") == [0, 0, 0, 0]
    assert "new" not in scene.node.broker.state.topics


@on_loop
async def test_a_topic_that_was_deleted_is_not_created_again_by_who_may_only_publish() -> None:
    scene = await Scene.begin()
    await scene.user("bob", "allow publish topic orders")
    message = message_pb2.Message(body=b"x")
    request = SendRequest(topic="orders", messages=[message]).SerializeToString()
    assert await scene.call("ProducerService/Send", "bob", request) == ""
    await scene.node.broker.catalog.delete("orders")
    assert await scene.call("ProducerService/Send", "bob", request) == "PERMISSION_DENIED"


@on_loop
async def test_a_subscription_needs_its_group_and_all_of_its_topics() -> None:
    scene = await Scene.begin()
    await scene.user("bob", "allow consume topic orders", "allow consume group billing")

    def start(group: str, *topics: str) -> bytes:
        subscriptions = [Subscription(topic=topic) for topic in topics]
        start = SubscribeStart(group=group, member_id="m", subscriptions=subscriptions)
        return SubscribeRequest(start=start).SerializeToString()

    name = "ConsumerService/Subscribe"
    assert await scene.call(name, "bob", start("billing", "orders")) == ""
    assert await scene.call(name, "bob", start("other", "orders")) == "PERMISSION_DENIED"
    assert await scene.call(name, "bob", start("billing", "orders", "x")) == "PERMISSION_DENIED"
    other = start("billing", "orders", "%RETRY%other")
    assert await scene.call(name, "bob", other) == "PERMISSION_DENIED"


@on_loop
async def test_a_transaction_is_ended_by_those_who_may_publish_to_its_topic() -> None:
    scene = await Scene.begin()
    half = message_pb2.Half(producer_group="g")
    await scene.node.send("orders", b"half", half=half, producer_id="p", sequence=1)
    [transaction_id] = scene.node.broker.state.transactions.open
    request = transaction_pb2.EndTransactionRequest(
        transaction_id=f"set-0:{transaction_id}", resolution=transaction_pb2.RESOLUTION_ROLLBACK
    ).SerializeToString()
    name = "TransactionService/EndTransaction"
    assert await scene.call(name, "alice", request) == "PERMISSION_DENIED"
    assert await scene.call("AdminService/CheckTransactionNow", "alice", request[:-2]) == (
        "PERMISSION_DENIED"
    )
    await scene.user("bob", "allow publish topic orders")
    assert await scene.call(name, "bob", request) == ""


@on_loop
async def test_a_follower_waits_for_news_of_a_key_that_it_does_not_know() -> None:
    scene = await Scene.begin()
    scene.node.consensus.depose()
    key = keys.new()
    scene.keys["bob"] = key.text
    route = asyncio.ensure_future(scene.call("ClusterService/Route", "bob", b""))
    await turns()
    assert not route.done()
    scene.node.consensus.elect()
    proof = keys.digest(key.secret)
    await scene.node.change_access(
        AccessChange(put_user=User(name="bob")),
        AccessChange(put_credential=Credential(id=key.id, user="bob", type=API_KEY, proof=proof)),
    )
    assert await soon(route) == ""


@on_loop
async def test_a_list_shows_what_its_caller_may_describe() -> None:
    scene = await Scene.begin()
    await scene.node.topic("secrets")
    await scene.user("bob", "allow publish topic orders")
    handler = scene.dispatcher.handler("AdminService", scene.methods["AdminService/ListTopics"])
    for user, seen in (("root", ["orders", "secrets"]), ("bob", ["orders"]), ("alice", [])):
        call = cast("Context", FakeCall(scene.keys[user]))
        answer = await cast("Any", handler.serve)(b"", call)
        topics = ListTopicsResponse.FromString(answer).topics
        assert sorted(one.info.topic for one in topics) == seen


@on_loop
async def test_a_message_is_shown_by_its_id_to_those_who_may_consume_its_topic() -> None:
    scene = await Scene.begin()
    stored = await scene.node.send("orders", b"body")
    await scene.user("bob", "allow consume topic orders")
    request = GetMessageRequest(message_id=f"set-0:{stored.log_offset}").SerializeToString()
    assert await scene.call("AdminService/GetMessage", "bob", request) == ""
    assert await scene.call("AdminService/GetMessage", "alice", request) == "PERMISSION_DENIED"


@on_loop
async def test_the_key_of_a_waiting_receive_is_looked_at_again_before_its_answer() -> None:
    scene = await Scene.begin()
    await scene.user("bob", "allow consume topic orders", "allow consume group billing")
    request = ReceiveRequest(group="billing", topic="orders", wait_ms=20_000)
    call = scene.call("ConsumerService/Receive", "bob", request.SerializeToString())
    waiting = asyncio.ensure_future(call)
    await turns()
    await scene.node.change_access(AccessChange(drop_user="bob"))
    await scene.node.send("orders", b"not for bob")
    assert await soon(waiting) == "UNAUTHENTICATED"


@on_loop
async def test_a_stream_ends_with_the_reason_when_its_key_is_revoked() -> None:
    scene = await Scene.begin()
    handler = scene.dispatcher.handler("ProducerService", scene.methods["ProducerService/Publish"])
    assert isinstance(handler, StreamHandler)
    task = asyncio.ensure_future(handler.serve(cast("Context", FakeCall(scene.keys["alice"]))))
    await turns()
    await scene.node.change_access(AccessChange(drop_user="alice"))
    with pytest.raises(CallAborted, match="was revoked") as ended:
        await soon(task)
    assert dict(ended.value.metadata)[CODE_KEY] == "UNAUTHENTICATED"
