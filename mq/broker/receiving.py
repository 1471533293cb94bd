"""Receive and acknowledge: the driver on the leader."""

from __future__ import annotations

from mq.broker.core import Core, Service
from mq.broker.groups import Groups
from mq.broker.pulling import Puller


class Receiving(Service):
    def __init__(self, core: Core, groups: Groups, puller: Puller) -> None:
        self._core = core
        self._groups = groups
        self._puller = puller
