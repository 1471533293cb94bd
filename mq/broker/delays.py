"""Delivery of messages that wait for their time: the driver on the leader."""

from __future__ import annotations

from mq.broker.core import Core, Service


class Delays(Service):
    def __init__(self, core: Core) -> None:
        self._core = core
