"""Messages that failed at a consumer: back after a while, or dead letters."""

from __future__ import annotations

from mq.broker.core import Core, Service
from mq.broker.groups import Groups


class Retrying(Service):
    def __init__(self, core: Core, groups: Groups) -> None:
        self._core = core
        self._groups = groups
