"""Clients with keys, at a broker that wants to know its callers: what each may do, keys that are
replaced while clients run, and keys that are revoked.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.client import (
    Admin,
    Consumer,
    Processor,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from mq.client.cluster import channels as security
from mq.errors import MqError, PermissionDenied, Unauthenticated
from mq.wire.v1.security_pb2 import Quota
from tests.integration import test_client_security as kinds
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import poll


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module")
def root(broker: SecuredBroker) -> Iterator[Admin]:
    with Admin(broker.address, api_key_file=broker.root_file) as admin:
        yield admin


class User:
    """A user of its own for a test, with a key in a file."""

    def __init__(self, root: Admin, broker: SecuredBroker, directory: Path, *policies: str) -> None:
        self.name = f"u{time.monotonic_ns()}"
        self.file = directory / f"{self.name}.key"
        self._root = root
        root.create_user(self.name)
        for line in policies:
            root.add_policy(f"user:{self.name}", line)
        self.key_id = self.new_key()
        self.given: dict[str, Any] = {"servers": broker.address, "api_key_file": self.file}

    def new_key(self) -> str:
        """Written to the file at once. Returns its id."""
        key = self._root.create_key(self.name)
        fresh = self.file.with_suffix(".fresh")
        fresh.write_text(key.text + "\n")
        fresh.replace(self.file)
        self.text = key.text
        return key.id


EVERYTHING = (
    "allow publish,consume,describe,create,alter,delete topic *",
    "allow consume,describe,create,alter,delete group *",
    "allow describe,alter cluster *",
)


@pytest.fixture
def user(root: Admin, broker: SecuredBroker, tmp_path: Path) -> User:
    return User(root, broker, tmp_path, *EVERYTHING)


@pytest.mark.parametrize("act", kinds.KINDS, ids=lambda one: one.__name__)
def test_every_kind_of_client_is_served_with_a_key(
    act: Callable[[dict[str, Any]], None], user: User
) -> None:
    kinds.produce(user.given)
    act(user.given)


@pytest.mark.parametrize(
    "act", [one for one in kinds.KINDS if one is not kinds.administer], ids=lambda one: one.__name__
)
def test_every_kind_of_client_hears_at_once_what_it_may_not_do(
    act: Callable[[dict[str, Any]], None],
    user: User,
    root: Admin,
    broker: SecuredBroker,
    tmp_path: Path,
) -> None:
    kinds.produce(user.given)
    # It may see everything, and do nothing.
    guest = User(root, broker, tmp_path, "allow describe topic *", "allow describe group *")
    began_s = time.monotonic()
    with pytest.raises(PermissionDenied):
        act(guest.given)
    assert time.monotonic() - began_s < 5.0


def test_a_processor_that_may_not_write_its_outputs_ends_with_that(
    user: User, root: Admin, broker: SecuredBroker, tmp_path: Path
) -> None:
    kinds.produce(user.given)
    root.create_topic("forbidden")
    policies = ("allow consume,describe topic t", "allow consume,describe group *")
    reader = User(root, broker, tmp_path, *policies, "allow describe topic forbidden")
    processor = Processor(
        group=f"g{reader.name}",
        subscriptions="t",
        handler=lambda messages: [("forbidden", one.body) for one in messages],
        start="earliest",
        **reader.given,
    )
    processor.start()
    with pytest.raises(PermissionDenied, match="forbidden"):
        processor.join(20)
    with contextlib.suppress(PermissionDenied):
        processor.close()


@contextlib.contextmanager
def running(user: User, topic: str) -> Iterator[tuple[list[str], list[bytes], list[MqError]]]:
    """A producer that sends without a pause and a consumer that reads; what they saw."""
    sent: list[str] = []
    seen: list[bytes] = []
    failures: list[MqError] = []
    is_over = threading.Event()

    def produce() -> None:
        with Producer(**user.given) as producer:
            while not is_over.is_set():
                try:
                    producer.send(topic, str(len(sent)))
                    sent.append(str(len(sent)))
                except MqError as error:
                    failures.append(error)
                    return

    thread = threading.Thread(target=produce)
    consumer = PushConsumer(
        group=f"g-{topic}",
        subscriptions=topic,
        handler=lambda one: seen.append(one.body),
        start="earliest",
        **user.given,
    )
    with contextlib.suppress(Unauthenticated), consumer:
        thread.start()
        try:
            poll(lambda: len(seen) > 5, "messages")
            yield sent, seen, failures
        finally:
            is_over.set()
            thread.join()
            if not failures:
                poll(lambda: len(seen) >= len(sent), "the rest")


@pytest.mark.parametrize("is_looked_at", [True, False], ids=["noticed", "found when refused"])
def test_a_key_is_replaced_without_a_failed_send_and_without_a_message_twice(
    user: User, root: Admin, is_looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former key is revoked at once, or after clients have seen the next one."""
    monkeypatch.setattr(security, "LOOK_S", 0.05 if is_looked_at else 1_000.0)
    topic = f"rotated-{user.name}"
    root.create_topic(topic)
    with running(user, topic) as (sent, seen, failures):
        for _ in range(3):
            before, former = len(sent), user.key_id
            user.key_id = user.new_key()
            if is_looked_at:
                time.sleep(3)  # the streams are opened anew meanwhile
            root.revoke_key(former)
            poll(lambda before=before: failures or len(sent) > before + 20, "sends")  # type: ignore[misc]
            assert not failures
    assert not failures
    assert sorted(map(int, seen)) == list(range(len(sent)))


def test_a_revoked_key_ends_a_running_consumer_and_producer_with_that(
    user: User, root: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"revoked-{user.name}"
    root.create_topic(topic)
    consumer = Consumer(group="polls", subscriptions=topic, **user.given)
    ended: list[BaseException] = []

    def poll_until_it_ends() -> None:
        try:
            while True:
                consumer.poll(timeout_s=1)
        except MqError as error:
            ended.append(error)

    thread = threading.Thread(target=poll_until_it_ends)
    thread.start()
    with running(user, topic) as (_, _, failures):
        root.revoke_key(user.key_id)
        began_s = time.monotonic()
        poll(lambda: bool(failures), "the producer to hear of it")
        thread.join(10)
        assert time.monotonic() - began_s < 5.0
    assert isinstance(failures[0], Unauthenticated)
    assert isinstance(ended[0], Unauthenticated)
    consumer.close()
    assert "has ended" in caplog.text
    assert user.text[-20:] not in caplog.text + str(failures[0]) + str(ended[0])


def test_a_revoked_key_is_told_to_receivers_and_in_transactions(user: User, root: Admin) -> None:
    topic = f"told-{user.name}"
    root.create_topic(topic)

    def decide(*_: Any) -> str:
        return "COMMIT"

    with (
        SimpleConsumer(group="r", subscriptions=topic, **user.given) as consumer,
        TransactionProducer(
            producer_group="p", execute=decide, check=decide, **user.given
        ) as producer,
    ):
        consumer.receive(wait_s=0)
        producer.send_in_transaction(topic, b"x")
        root.revoke_key(user.key_id)
        with pytest.raises(Unauthenticated):
            consumer.receive(wait_s=5)
        with pytest.raises(Unauthenticated):
            producer.send_in_transaction(topic, b"y")


def test_a_key_may_come_from_a_function(user: User, root: Admin) -> None:
    asked: list[str] = []

    def key() -> str:
        asked.append(user.text)
        return user.text

    given = {"servers": user.given["servers"], "api_key": key}
    with Producer(**given) as producer:
        producer.send("of-a-function", b"x")
        former, user.key_id = user.key_id, user.new_key()
        root.revoke_key(former)
        producer.send("of-a-function", b"y")
        assert len(set(asked)) == 2


def test_a_quota_slows_a_producer_down_and_fails_nothing(user: User, root: Admin) -> None:
    root.set_quota(Quota(subject=f"user:{user.name}", publish_bytes_per_s=100_000))
    try:
        # Small batches: one is stored as a whole, however little is left.
        with Producer(
            **user.given, linger_ms=0, batch_bytes=20_000, compress_above_bytes=1 << 20
        ) as producer:
            producer.send("slow", bytes(10_000))
            began_s = time.monotonic()
            futures = [producer.send_async("slow", bytes(10_000)) for _ in range(40)]
            for future in futures:
                future.result(30)
            took_s = time.monotonic() - began_s
    finally:
        root.remove_quota(f"user:{user.name}")
    assert 1.5 < took_s < 10.0, "400 kB at 100 kB/s: a second is there, another may be owed"
