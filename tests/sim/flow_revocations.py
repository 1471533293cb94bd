"""Keys that are made and revoked under fail-overs, against a model of which of them may come in.

    made, and told so        lets its user in, at every leader from then on
    revoked, and told so     nothing that is sent with it from then on is stored
    revoked                  its streams end, at the leader that serves them
    every change             has its record in the audit trail

A leader that was deposed and does not know it may still let a revoked key in: what it takes is
never committed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING

from mq.access import keys
from mq.access.keys import ApiKey
from mq.access.policies import Action, topic_resource
from mq.broker.security.audit import BROKER
from mq.broker.security.changes import ChangeRequest
from mq.errors import MqError, Unauthenticated
from mq.names import AUDIT_TOPIC
from mq.wire.v1.security_pb2 import API_KEY, AccessChange, AccessPolicy, Credential, User
from tests.sim.flow_checks import visible
from tests.sim.flow_clients import make_topic
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation
from tests.support.consensus import batch

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.broker.security.gate import LiveStream
    from tests.sim.flow_world import World

OPTIONS = Options(auth={"mode": "required"})
_TOPIC, _USER, _ADDRESS = "orders", "shop", "10.0.0.1"


class Key:
    """A key and what is known of it."""

    def __init__(self, world: World) -> None:
        letters = "".join(world.rng.choices("abcdefghijklmnopqrstuvwxyz234567", k=12))
        secret = base64.urlsafe_b64encode(world.rng.randbytes(32)).decode().rstrip("=")
        self.key = ApiKey(letters, secret)
        # From when on it is being revoked, and known to be.
        self.is_leaving = self.is_revoked = False


class Model:
    def __init__(self, world: World) -> None:
        self.world = world
        self.changes = 0

    async def change(self, *changes: AccessChange) -> None:
        async def once(broker: Broker) -> None:
            await broker.access_changes.change(ChangeRequest(changes, BROKER))

        await self.world.patiently(once)
        self.changes += 1

    async def make(self, key: Key) -> None:
        proof = keys.digest(key.key.secret)
        credential = Credential(id=key.key.id, user=_USER, type=API_KEY, proof=proof)
        await self.change(AccessChange(put_credential=credential))

    async def revoke(self, key: Key) -> None:
        key.is_leaving = True
        await self.change(AccessChange(drop_credential=key.key.id))
        key.is_revoked = True


class Producer:
    """Sends with one key until it is refused."""

    def __init__(self, model: Model, key: Key) -> None:
        self._model = model
        self._key = key

    async def run(self) -> None:
        world, key = self._model.world, self._key
        while True:
            was_revoked, was_leaving = key.is_revoked, key.is_leaving
            try:
                await world.ask(self._send)
            except Unauthenticated as error:
                if not was_leaving and not key.is_leaving:
                    raise Violation(f"a key that was not revoked is refused: {error}") from None
                return
            except (MqError, ConnectionResetError):
                pass
            else:
                world.count("stored")
                if was_revoked:
                    raise Violation(f"key {key.key.id} was revoked, and a message of it stored")
            await asyncio.sleep(world.rng.uniform(0.05, 0.4))

    async def _send(self, broker: Broker) -> None:
        broker.leadership.check()
        caller = broker.gate.identify(f"Bearer {self._key.key.text}", (), _ADDRESS)
        broker.gate.check(caller, Action.PUBLISH, topic_resource(_TOPIC))
        slot = await broker.submit(batch(_TOPIC, self._key.key.id.encode()))
        await asyncio.shield(slot.outcome)


class Stream:
    """A stream of one key, opened again at each leader."""

    def __init__(self, model: Model, key: Key) -> None:
        self._model = model
        self._key = key
        self._broker: Broker | None = None
        self._live: LiveStream | None = None
        self._ended: list[MqError] = []

    async def run(self) -> None:
        while not self._ended:
            await self._model.world.patiently(self._open_if_new)
            await asyncio.sleep(0.05)

    async def _open_if_new(self, broker: Broker) -> None:
        broker.leadership.check()
        if broker is self._broker:
            if self._key.is_revoked and not self._ended:
                raise Violation(f"key {self._key.key.id} was revoked, and its stream goes on")
            return
        if self._broker is not None and self._live is not None:
            self._broker.gate.leave(self._live)
        self._broker = broker
        try:
            caller = broker.gate.identify(f"Bearer {self._key.key.text}", (), _ADDRESS)
        except Unauthenticated as error:
            if not self._key.is_leaving:
                raise Violation(f"a key that was not revoked is refused: {error}") from None
            self._ended.append(error)
            return
        self._live = broker.gate.enter(caller, self._ended.append)


async def story(world: World, scale: int = 1) -> None:
    await make_topic(world, _TOPIC, 1)
    model = Model(world)
    await model.change(
        AccessChange(put_user=User(name=_USER)),
        AccessChange(
            put_policy=AccessPolicy(subject=f"user:{_USER}", line=f"allow publish topic {_TOPIC}")
        ),
    )
    world.arm()
    for _ in range(scale):
        key = Key(world)
        await model.make(key)
        loop = asyncio.get_running_loop()
        clients = (Producer(model, key), Stream(model, key))
        work = [loop.create_task(one.run()) for one in clients]
        await asyncio.sleep(world.rng.uniform(0.2, 1.0))
        await model.revoke(key)
        async with asyncio.timeout(600):
            await asyncio.gather(*work)
    await _check_trail(world, model)


async def _check_trail(world: World, model: Model) -> None:
    """Each change is recorded, at least as often as it was told to be done."""
    process = await world.until_led()
    records = [json.loads(one.text) for one in visible(process, AUDIT_TOPIC)]
    made = [one for one in records if one["what"] == "put_credential"]
    dropped = [one for one in records if one["what"] == "drop_credential"]
    expected = (model.changes - 1) // 2
    if len(made) != expected or len(dropped) != expected:
        raise Violation(
            f"{len(made)} keys made and {len(dropped)} dropped by the trail: {expected}"
        )
