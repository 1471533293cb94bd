"""AdminService, about other broker sets of the cluster: known by an entry of the log, so that all
find each other again after everything has stopped.
"""

from __future__ import annotations

import re

from mq.broker.broker import Broker
from mq.broker.writing import to_its_end, write_command
from mq.errors import IllegalRequest
from mq.rpc.methods import Context
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import PeerSet
from mq.wire.v1.state_pb2 import Command, DropBrokerSet, PutBrokerSet

_ADDRESSES_MAX = 32
_NAME = re.compile(r"[\w.:-]{1,127}")
_ADDRESS = re.compile(r"[^\s,=]{1,253}:[0-9]{1,5}")


class SetAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def add_broker_set(
        self, request: pb.AddBrokerSetRequest, context: Context
    ) -> pb.BrokerSetList:
        await self._broker.leadership.settled()
        broker_set = request.broker_set
        self._check_other(broker_set.name)
        wrong = [one for one in broker_set.addresses if not _ADDRESS.fullmatch(one)]
        if not 0 < len(broker_set.addresses) <= _ADDRESSES_MAX or wrong:
            raise IllegalRequest(
                f"addresses of set {broker_set.name}: 1 to {_ADDRESSES_MAX} of host:port"
            )
        return await self._write(Command(put_broker_set=PutBrokerSet(broker_set=broker_set)))

    async def remove_broker_set(
        self, request: pb.RemoveBrokerSetRequest, context: Context
    ) -> pb.BrokerSetList:
        await self._broker.leadership.settled()
        self._check_other(request.name)
        return await self._write(Command(drop_broker_set=DropBrokerSet(name=request.name)))

    def _check_other(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise IllegalRequest(f"{name[:200]!r} is no name of a broker set")
        if name == self._broker.directory.own_name:
            raise IllegalRequest(f"this broker belongs to set {name}: name another one")

    async def _write(self, command: Command) -> pb.BrokerSetList:
        await to_its_end(write_command(self._broker.consensus, command))
        known = self._broker.state.sets.added()
        sets = [PeerSet(name=name, addresses=found) for name, found in known.items()]
        return pb.BrokerSetList(broker_sets=sets)
