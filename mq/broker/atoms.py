"""Exactly-once processing: what was made of some messages, and that they are done, as one entry."""

from __future__ import annotations

from mq.broker.core import Core
from mq.broker.groups import Groups
from mq.broker.publishing import Publisher
from mq.broker.receiving import Receiving


class Atoms:
    def __init__(
        self, core: Core, publisher: Publisher, groups: Groups, receiving: Receiving
    ) -> None:
        self._core = core
        self._publisher = publisher
        self._groups = groups
        self._receiving = receiving
