"""What becomes of a message whose handler failed, and how a handler says what it wants.

In a clustering group the message goes back to the broker and comes again later, to whichever
member, with its attempts counted; after too many it is a dead letter. In ordered and broadcast
groups it is tried again in place: in its queue, by this consumer. Nothing here waits; safe from any
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mq.client.consumer.held_queue import Taken
from mq.client.consumer.retries import Failure
from mq.errors import IllegalConfig, IllegalDelay

if TYPE_CHECKING:
    from mq.client.consumer.session import Session

log = logging.getLogger(__name__)

# Seconds before the next attempt: of the first one, doubled with each that failed; of each attempt,
# the last one for all beyond; or asked for with the number of the attempt that failed.
RetryDelay = float | Sequence[float] | Callable[[int], float] | None

IN_PLACE_S = 1.0
IN_PLACE_S_MAX = 30.0
_DELAY_S_MAX = 40 * 86_400
_REASON_CHARACTERS_MAX = 1_000


class Nack(Exception):
    """Raised or returned by a handler: the message is not done, and shall come again after so long.
    Without `delay_s` it comes when its attempt is due.

    >>> Nack("the bank is closed", delay_s=3600).delay_s
    3600
    """

    def __init__(self, reason: str = "", *, delay_s: float | None = None) -> None:
        if delay_s is not None and not 0 <= delay_s <= _DELAY_S_MAX:
            raise IllegalDelay(f"delay_s = {delay_s}: 0 s to 40 days")
        super().__init__(reason)
        self.reason = reason
        self.delay_s = delay_s


class Failing:
    """Of one consumer."""

    def __init__(self, session: Session, retry_delay_s: RetryDelay = None) -> None:
        """IllegalConfig when the delays make no sense."""
        self._session = session
        self._delay = _checked(retry_delay_s)

    def failed(self, taken: Iterable[Taken], error: BaseException) -> None:
        """They are not done, because of this. Each stays in hand until somebody else has it."""
        for one in taken:
            self._failed(one, error)

    def _failed(self, taken: Taken, error: BaseException) -> None:
        wanted_s = error.delay_s if isinstance(error, Nack) else None
        if wanted_s is None:
            wanted_s = self._wanted_s(taken.message.attempt)
        if self._session.wanted.is_clustering:
            delay_ms = None if wanted_s is None else round(wanted_s * 1000)
            _log(taken, error, wanted_s)
            self._session.retries.add(Failure(taken, delay_ms, _reason(error)))
        else:
            if wanted_s is None:
                wanted_s = doubled_s(IN_PLACE_S, taken.message.attempt)
            _log(taken, error, wanted_s)
            self._session.holdings.retry(taken, wanted_s)

    def _wanted_s(self, attempt: int) -> float | None:
        try:
            found = _delay_s(self._delay, attempt)
            if found is None or 0 <= found <= _DELAY_S_MAX:
                return found
            log.error("retry_delay_s gives %r for attempt %d: not used", found, attempt)
        except Exception:
            # The user's own. The message must not be lost for it.
            log.exception("retry_delay_s failed for attempt %d", attempt)
        return None


def doubled_s(first_s: float, attempt: int) -> float:
    """Before the next attempt; doubles with each one that failed."""
    return min(first_s * 2.0 ** min(attempt - 1, 30), max(IN_PLACE_S_MAX, first_s))


def _delay_s(delay: RetryDelay, attempt: int) -> float | None:
    if delay is None or isinstance(delay, int | float):
        return None if delay is None else doubled_s(delay, attempt)
    if callable(delay):
        return delay(attempt)
    return delay[min(attempt, len(delay)) - 1]


def _checked(delay: RetryDelay) -> RetryDelay:
    if delay is None or callable(delay):
        return delay
    given = [delay] if isinstance(delay, int | float) else list(delay)
    if not given or not all(0 <= one <= _DELAY_S_MAX for one in given):
        raise IllegalConfig(
            f"retry_delay_s = {delay!r}: 0 s to 40 days, one, several, or a function of the attempt"
        )
    return delay if isinstance(delay, int | float) else given


def _reason(error: BaseException) -> str:
    if isinstance(error, Nack):
        text = _text(error.reason)
    else:
        text = ": ".join(filter(None, (type(error).__name__, _text(error))))
    # What cannot be encoded would be lost as a whole.
    return text[:_REASON_CHARACTERS_MAX].encode(errors="replace").decode()


def _text(value: object) -> str:
    """Of something of the user's, whatever it is: who works on messages must not die of it."""
    try:
        return "" if value is None else str(value)
    except Exception:  # noqa: BLE001 - the user's own
        return "it cannot be said"


def _log(taken: Taken, error: BaseException, delay_s: float | None) -> None:
    message, is_nack = taken.message, isinstance(error, Nack)
    log.log(
        logging.INFO if is_nack else logging.ERROR,
        "the handler %s message %s, at %d of queue %d of topic %s, attempt %d; next one %s",
        f"gave back ({_reason(error)})" if is_nack else "failed on",
        message.message_id,
        message.queue_offset,
        message.queue_id,
        message.topic,
        message.attempt,
        "when it is due" if delay_s is None else f"in {delay_s:.1f} s",
        exc_info=None if is_nack else error,
    )
