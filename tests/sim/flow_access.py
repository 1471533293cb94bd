"""An administrator gives keys and policies, and takes them back. A key that was given is taken by
whoever leads, one that was revoked is never taken again, a stream that began with it has ended, and
the audit trail tells each change once, in its order: from it, the state can be made again.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mq.access import keys
from mq.access.keys import ApiKey
from mq.access.policies import Action, topic_resource
from mq.broker.security.changes import ChangeRequest
from mq.errors import MqError, Unauthenticated
from mq.names import AUDIT_TOPIC
from mq.wire.v1.security_pb2 import API_KEY, AccessChange, AccessPolicy, Credential, User
from tests.sim.flow_checks import visible
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from mq.broker.security.gate import Principal
    from tests.sim.flow_member import Process
    from tests.sim.flow_world import World

OPTIONS = Options(auth={"mode": "required"})
_USERS = ("alice", "bob")
_LINES = ("allow publish topic t", "allow * topic u*", "deny publish topic t")
_TOPICS = ("t", "u1")


class _Root(NamedTuple):
    user: str = "root"
    credential: str = "rootkeyrootk"
    address: str = "10.0.0.1"


def _key(user: str, number: int) -> ApiKey:
    return ApiKey((user[0] * 8 + "abcdefghijkl"[number] * 4), user[0] * 43)


async def story(world: World, scale: int = 1) -> None:
    admin = _Administrator(world)
    world.arm()
    for name in _USERS:
        await admin.change(AccessChange(put_user=User(name=name)))
    for _ in range(8 * scale):
        await admin.step()
        await asyncio.sleep(world.rng.choice((0.0, 0.1, 1.1)))
    world.disarm()
    await world.settled()
    for member in world.members:
        admin.check(member.running)
        _check_trail(member.running)


class _Administrator:
    """The only one who changes something, so that an answer says how everything is."""

    def __init__(self, world: World) -> None:
        self._world = world
        # What every leader has to know.
        self._keys: dict[str, ApiKey] = {}
        self._revoked: dict[str, ApiKey] = {}
        self._lines: set[tuple[str, str]] = set()
        self._given = 0

    async def change(self, *changes: AccessChange) -> None:
        request = ChangeRequest(changes, _Root())
        await self._world.patiently(lambda broker: broker.access_changes.change(request))

    async def step(self) -> None:
        rng = self._world.rng
        user = rng.choice(_USERS)
        process = await self._world.until_led()
        streams = [(one, _Stream(process, one)) for one in self._keys.values()]
        action = rng.choice(("give", "give", "revoke", "revoke", "allow", "disallow"))
        if action == "give":
            await self._give(user)
        elif action == "revoke" and self._keys:
            await self._revoke(rng.choice(sorted(self._keys)))
        elif action in ("allow", "disallow"):
            await self._set_line(user, rng.choice(_LINES), is_there=action == "allow")
        self.check(await self._world.until_led())
        # Elsewhere streams end because the node leads no more.
        is_serving = not process.life.is_over and process.broker.leadership.is_serving
        for key, stream in streams:
            if key.id in self._revoked and is_serving and not stream.errors:
                raise Violation(f"a stream of key {key.id} goes on, which was revoked")

    async def _give(self, user: str) -> None:
        if sum(one.id.startswith(user[0] * 8) for one in self._keys.values()) == 2:
            return
        key = _key(user, self._given % 12)
        self._given += 1
        if key.id in self._revoked:
            return
        proof = keys.digest(key.secret)
        credential = Credential(id=key.id, user=user, type=API_KEY, proof=proof)
        await self.change(AccessChange(put_credential=credential))
        self._keys[key.id] = key

    async def _revoke(self, key_id: str) -> None:
        key = self._keys.pop(key_id)
        await self.change(AccessChange(drop_credential=key_id))
        self._revoked[key_id] = key

    async def _set_line(self, user: str, line: str, *, is_there: bool) -> None:
        policy = AccessPolicy(subject=f"user:{user}", line=line)
        if is_there:
            await self.change(AccessChange(put_policy=policy))
            self._lines.add((user, line))
        else:
            await self.change(AccessChange(drop_policy=policy))
            self._lines.discard((user, line))

    def check(self, process: Process) -> None:
        """What was answered holds on this node, which has applied everything."""
        for key in self._keys.values():
            caller = _identified(process, key)
            if caller is None:
                raise Violation(f"key {key.id} is refused by {process.member.name}")
            for topic in _TOPICS:
                self._check_ruling(process, caller, topic)
        for key in self._revoked.values():
            if _identified(process, key) is not None:
                raise Violation(f"key {key.id}, which was revoked, is taken again")

    def _check_ruling(self, process: Process, caller: Principal, topic: str) -> None:
        lines = {line for user, line in self._lines if user == caller.user}
        is_allowed = topic == "u1" and _LINES[1] in lines
        is_allowed |= topic == "t" and _LINES[0] in lines and _LINES[2] not in lines
        ruling = process.broker.gate.ruling(caller, Action.PUBLISH, topic_resource(topic))
        if ruling.is_allowed != is_allowed:
            raise Violation(f"{caller.user} with {lines} may publish to {topic}: {ruling}")


class _Stream:
    def __init__(self, process: Process, key: ApiKey) -> None:
        self.errors: list[MqError] = []
        caller = _identified(process, key)
        assert caller is not None
        process.life.run(process.broker.gate.enter, caller, self.errors.append)


def _identified(process: Process, key: ApiKey) -> Principal | None:
    try:
        identify = process.broker.gate.identify
        caller: Principal = process.life.run(identify, f"Bearer {key.text}", (), "10.0.0.2")
    except Unauthenticated:
        return None
    return caller


def _check_trail(process: Process) -> None:
    """Each record goes on from where those before it left."""
    made: dict[str, Any] = {}
    for seen in visible(process, AUDIT_TOPIC):
        record = json.loads(seen.text)
        if record["outcome"] != "done":
            continue
        shown = record["after"] or record["before"]
        kind = record["what"].partition("_")[2]
        name = f"{kind} {shown.get('id') or shown.get('name') or (shown['subject'], shown['line'])}"
        if made.get(name) != record["before"]:
            raise Violation(f"{record} was recorded where {name} was {made.get(name)}")
        made[name] = record["after"]
    state = process.machine.state.access.encode()
    there = {f"credential {one.id}" for one in state.credentials}
    there |= {f"user {one.name}" for one in state.users}
    there |= {f"policy {one.subject, one.line}" for one in state.policies}
    told = {name for name, after in made.items() if after is not None}
    if told != there:
        raise Violation(f"the audit trail tells of {told}, and there is {there}")
