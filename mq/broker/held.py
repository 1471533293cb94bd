"""Held messages: the delays and transactions that a producer may ask for, normalized before they
are stored.

Delays become delivery times, and what a half message leaves open is filled in, by the leader: what
stands in the log says all, so that replicas agree whatever their clocks and configurations are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from google.protobuf.message import DecodeError

from mq import names
from mq.broker.state.transactions import HALF_CACHED_BYTES_MAX, HalfTerms, half_terms
from mq.config import Config, TransactionsConfig
from mq.errors import IllegalDelay, IllegalRequest, MalformedBatch, MessageTooLarge
from mq.levels import DELAY_MS_MAX, LEVELS_MS
from mq.store import rebatch
from mq.store.batch import Batch
from mq.wire.v1.message_pb2 import Half

# Room for what is written in the same entry when the batch is delivered.
DELIVERY_ROOM_BYTES = 256
_CHECKS_MAX = 1_000
_CHECK_MS_MAX = 86_400_000


def level_ms(level: int) -> int:
    """Raises IllegalDelay."""
    if not 1 <= level <= len(LEVELS_MS):
        raise IllegalDelay(f"delay level {level}: they are 1 to {len(LEVELS_MS)}")
    return LEVELS_MS[level - 1]


def normalize_held(batch: Batch, clock_ms: Callable[[], int], config: Config) -> Batch:
    """The batch in its stored form. Raises IllegalDelay, MessageTooLarge, IllegalGroup,
    MalformedBatch, IllegalRequest.
    """
    has_delay = batch.deliver_at_ms != 0 or batch.delay_ms != 0
    if batch.half:
        if has_delay:
            raise IllegalRequest("half messages cannot be delayed as well")
        half = normal_half(batch.half, config.transactions)
        return batch if half == batch.half else rebatch.halved(batch, half)
    if has_delay:
        now_ms = clock_ms()
        deliver_at_ms = delivery_time(batch.deliver_at_ms, batch.delay_ms, now_ms)
        bytes_max = config.store.entry_bytes_max - DELIVERY_ROOM_BYTES
        if len(batch.data) > bytes_max:
            raise MessageTooLarge(
                f"a batch of {len(batch.data)} bytes: at most {bytes_max} can be delivered later"
            )
        return rebatch.delayed(batch, deliver_at_ms if deliver_at_ms > now_ms else 0)
    return batch


def delivery_time(deliver_at_ms: int, delay_ms: int, now_ms: int) -> int:
    """Raises IllegalDelay if it is too far ahead, negative, or given in both ways."""
    if deliver_at_ms and delay_ms:
        raise IllegalDelay("deliver_at_ms and delay_ms: say one of them")
    at_ms = deliver_at_ms or now_ms + delay_ms
    if deliver_at_ms < 0 or at_ms - now_ms > DELAY_MS_MAX:
        raise IllegalDelay(
            f"delivery at {at_ms}: it must be a time in milliseconds since 1970, at most 40 days "
            f"ahead of {now_ms}, the time here"
        )
    return at_ms


def normal_half(half: bytes, options: TransactionsConfig) -> bytes:
    """The `half` of a batch in its stored form. Raises MalformedBatch, IllegalGroup,
    IllegalRequest.
    """
    if len(half) <= HALF_CACHED_BYTES_MAX:
        return _cached_half(half, options)
    return _normal_half(half, options)


def _normal_half(half: bytes, options: TransactionsConfig) -> bytes:
    try:
        group, first_check_ms, check_interval_ms, checks_max = half_terms(half)
    except DecodeError as error:
        raise MalformedBatch(f"half is no Half: {error}") from None
    names.check_group(group)
    terms = HalfTerms(
        group,
        first_check_ms or options.first_check_ms,
        check_interval_ms or options.check_interval_ms,
        checks_max or options.checks_max,
    )
    if max(terms.first_check_ms, terms.check_interval_ms) > _CHECK_MS_MAX:
        raise IllegalRequest(f"checks of a transaction are at most {_CHECK_MS_MAX} ms apart")
    if terms.checks_max > _CHECKS_MAX:
        raise IllegalRequest(f"checks_max = {terms.checks_max}: at most {_CHECKS_MAX}")
    return Half(**terms._asdict()).SerializeToString()


_cached_half = functools.lru_cache(maxsize=4096)(_normal_half)
