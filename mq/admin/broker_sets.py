"""The other broker sets of the cluster, as operators add and remove them: written into the log, so
that the sets find each other again after all have stopped. On the leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.broker.broker import Broker
from mq.broker.directory import SETS_MAX
from mq.broker.other_set import ADDRESSES_MAX, is_address, is_set_name, legal_addresses
from mq.broker.security.audit import Record
from mq.errors import IllegalRequest
from mq.wire.v1.cluster_pb2 import PeerSet
from mq.wire.v1.state_pb2 import Command, DropBrokerSet, PutBrokerSet


class BrokerSets:
    """The list that `add` and `remove` return is of the sets that were added."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def add(self, name: str, addresses: Sequence[str]) -> list[PeerSet]:
        self._check_other(name)
        if not 0 < len(addresses) <= ADDRESSES_MAX or not all(map(is_address, addresses)):
            raise IllegalRequest(f"addresses of set {name}: 1 to {ADDRESSES_MAX} of host:port")
        broker_set = PeerSet(name=name, addresses=legal_addresses(addresses))
        command = Command(put_broker_set=PutBrokerSet(broker_set=broker_set))
        record = Record(
            "add_broker_set",
            f"set:{name}",
            self._known(name),
            {"addresses": [*broker_set.addresses]},
        )
        return await self._write(command, record)

    async def remove(self, name: str) -> list[PeerSet]:
        self._check_other(name)
        command = Command(drop_broker_set=DropBrokerSet(name=name))
        return await self._write(
            command, Record("remove_broker_set", f"set:{name}", self._known(name))
        )

    def _known(self, name: str) -> dict[str, object] | None:
        found = self._broker.state.sets.added().get(name)
        return None if found is None else {"addresses": [*found]}

    def _check_other(self, name: str) -> None:
        if not is_set_name(name):
            raise IllegalRequest(f"{name[:200]!r} is no name of a broker set")
        if name == self._broker.directory.own_name:
            raise IllegalRequest(f"this broker belongs to set {name}: name another one")
        known = self._broker.state.sets
        if name not in known and len(known) >= SETS_MAX:
            raise IllegalRequest(f"{SETS_MAX} broker sets were added and removed: that is all")

    async def _write(self, command: Command, record: Record) -> list[PeerSet]:
        recorded = self._broker.audit.recorded(command, record)
        await self._broker.writer.write_uncancelled(*recorded)
        known = self._broker.state.sets.added()
        return [PeerSet(name=name, addresses=found) for name, found in known.items()]
