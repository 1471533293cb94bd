"""What came of the last attempt at each broker: for the texts of errors, and for one line in the
log when a program waits and its user should know why.

Of one connection, all its broker sets included. Any answer counts, also a refusal. Pure but for the
log: the caller brings the time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mq.errors import Unreachable

log = logging.getLogger(__name__)

# A fail-over takes less; what takes longer is worth a line.
LOG_AFTER_S = 1.0
_ADVICE = "Is a broker running there? `mq server` starts one"


class Attempts:
    def __init__(self) -> None:
        # By address: why the last attempt failed; None: it was answered.
        self._reasons: dict[str, str | None] = {}
        # When the first attempt began after which no broker has answered.
        self._silent_since_s: float | None = None
        self._is_logged = False

    def answered(self, address: str, now_s: float) -> None:
        self._reasons[address] = None
        if self._is_logged and self._silent_since_s is not None:
            silent_s = now_s - self._silent_since_s
            log.info("%s answers, after %.1f s without a broker", address, silent_s)
        self._silent_since_s, self._is_logged = None, False

    def failed(self, address: str, error: Unreachable, began_s: float, now_s: float) -> None:
        self._reasons[address] = reason(error, address)
        if self._silent_since_s is None:
            self._silent_since_s = began_s
        if not self._is_logged and now_s - self._silent_since_s >= LOG_AFTER_S:
            self._is_logged = True
            failed = [one for one, why in self._reasons.items() if why is not None]
            log.warning("no broker answers, still trying: %s", self.told(failed))

    def is_known(self, address: str) -> bool:
        """Whether there was an attempt."""
        return address in self._reasons

    def is_up(self, address: str) -> bool:
        """By the last attempt; False also if there was none."""
        return address in self._reasons and self._reasons[address] is None

    def reason(self, address: str) -> str:
        """Why it was not reached the last time; empty if it was, or was never tried."""
        return self._reasons.get(address) or ""

    def told(self, addresses: Iterable[str]) -> str:
        """Each with why it was not reached."""
        return ", ".join(
            f"{one} ({why})" if (why := self.reason(one)) else one for one in addresses
        )

    def unreachable(self, addresses: Iterable[str], timeout_s: float) -> Unreachable:
        """None of them has answered in that time."""
        tried = self.told(addresses)
        return Unreachable(
            f"no broker answered within {seconds(timeout_s)}; tried {tried}. {_ADVICE}"
        )


def reason(error: Unreachable, address: str) -> str:
    """Without the address in front, which is named beside it."""
    return str(error).removeprefix(address).lstrip(": ")


def seconds(length_s: float) -> str:
    """What is left of a time-out after other steps has many digits."""
    return f"{max(0.0, round(length_s, 1)):g} s"
