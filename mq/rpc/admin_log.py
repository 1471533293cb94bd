"""AdminService, for backups: the log as it stands, of any node."""

from __future__ import annotations

from mq.broker.broker import Broker
from mq.errors import IllegalRequest
from mq.rpc.methods import Context
from mq.wire.v1 import admin_pb2 as pb


class LogAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def read_log(self, request: pb.ReadLogRequest, context: Context) -> pb.LogChunk:
        raise IllegalRequest("not yet")
