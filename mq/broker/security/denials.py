"""Calls that the gate refused, or would refuse: counted, and some of them logged."""

from __future__ import annotations

from mq.broker.security.gate import Denial
from mq.logging import RateLimit, get_logger

log = get_logger(__name__)

_LINES, _LINES_S = 10, 10.0


class Denials:
    def __init__(self) -> None:
        # By reason, unauthenticated or denied, and whether it was enforced.
        self.counts: dict[tuple[str, bool], int] = {}
        self._lines = RateLimit(_LINES, _LINES_S)

    def tell(self, denial: Denial) -> None:
        reason = "unauthenticated" if denial.need is None else "denied"
        key = reason, denial.is_enforced
        self.counts[key] = self.counts.get(key, 0) + 1
        if self._lines.admit():
            log.warning(
                "a call was refused" if denial.is_enforced else "a call would be refused",
                reason=denial.reason,
                user=denial.principal.user,
                address=denial.principal.address,
                **self._lines.omitted(),
            )
