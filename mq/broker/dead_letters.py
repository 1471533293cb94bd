"""Dead letters, for operators: what there is, sending it again, letting go of it."""

from __future__ import annotations

from mq.broker.core import Core


class DeadLetters:
    def __init__(self, core: Core) -> None:
        self._core = core
