"""Ends of transactions, and the questions about those that have none: the driver on the leader."""

from __future__ import annotations

from mq.broker.core import Core, Service
from mq.broker.publishing import Publisher


class Transacting(Service):
    def __init__(self, core: Core, publisher: Publisher) -> None:
        self._core = core
        self._publisher = publisher
