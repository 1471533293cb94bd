"""AdminService, about other broker sets of the cluster: known by an entry of the log, so that all
find each other again after everything has stopped.
"""

from __future__ import annotations

from mq.broker.broker import Broker
from mq.broker.directory import SETS_MAX
from mq.broker.other_set import ADDRESSES_MAX, is_address, is_set_name, legal_addresses
from mq.broker.writing import to_its_end, write_command
from mq.errors import IllegalRequest
from mq.rpc.methods import Context
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import PeerSet
from mq.wire.v1.state_pb2 import Command, DropBrokerSet, PutBrokerSet


class SetAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def add_broker_set(
        self, request: pb.AddBrokerSetRequest, context: Context
    ) -> pb.BrokerSetList:
        await self._broker.leadership.settled()
        name, addresses = request.broker_set.name, request.broker_set.addresses
        self._check_other(name)
        if not 0 < len(addresses) <= ADDRESSES_MAX or not all(map(is_address, addresses)):
            raise IllegalRequest(f"addresses of set {name}: 1 to {ADDRESSES_MAX} of host:port")
        broker_set = PeerSet(name=name, addresses=legal_addresses(addresses))
        return await self._write(Command(put_broker_set=PutBrokerSet(broker_set=broker_set)))

    async def remove_broker_set(
        self, request: pb.RemoveBrokerSetRequest, context: Context
    ) -> pb.BrokerSetList:
        await self._broker.leadership.settled()
        self._check_other(request.name)
        return await self._write(Command(drop_broker_set=DropBrokerSet(name=request.name)))

    def _check_other(self, name: str) -> None:
        if not is_set_name(name):
            raise IllegalRequest(f"{name[:200]!r} is no name of a broker set")
        if name == self._broker.directory.own_name:
            raise IllegalRequest(f"this broker belongs to set {name}: name another one")
        known = self._broker.state.sets
        if name not in known and len(known) >= SETS_MAX:
            raise IllegalRequest(f"{SETS_MAX} broker sets were added and removed: that is all")

    async def _write(self, command: Command) -> pb.BrokerSetList:
        await to_its_end(write_command(self._broker.consensus, command))
        known = self._broker.state.sets.added()
        sets = [PeerSet(name=name, addresses=found) for name, found in known.items()]
        return pb.BrokerSetList(broker_sets=sets)
