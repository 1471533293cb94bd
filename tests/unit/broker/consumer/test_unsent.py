"""The size limit of a delivery, by unsent bytes and by the client's reports."""

from __future__ import annotations

from mq.broker.consumer.unsent import SMALL_BYTES, Allowance, Unsent

BUDGET = 32 << 20
WANTED = 1 << 20


def test_a_delivery_has_its_own_limit_while_little_is_unsent() -> None:
    unsent = Unsent(BUDGET)
    assert unsent.share(WANTED) == WANTED
    assert unsent.share(10) == 10


def test_the_more_is_unsent_the_smaller_is_a_delivery_but_never_too_small() -> None:
    unsent, shares = Unsent(BUDGET), []
    for _ in range(1_000):
        shares.append(unsent.share(WANTED))
        unsent.hold(shares[-1])
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == SMALL_BYTES
    # Beyond the budget there are small ones only.
    assert unsent.held_bytes < BUDGET + 1_000 * SMALL_BYTES
    for share in shares:
        unsent.release(share)
    assert unsent.held_bytes == 0
    assert unsent.share(WANTED) == WANTED


def test_a_stream_earns_larger_deliveries_by_what_its_client_has_done() -> None:
    allowance = Allowance()
    assert allowance.bytes == SMALL_BYTES
    allowance.earn(SMALL_BYTES - 1, WANTED)
    assert allowance.bytes == SMALL_BYTES
    allowance.earn(1, WANTED)
    assert allowance.bytes == 2 * SMALL_BYTES
    for _ in range(100):
        allowance.earn(WANTED, WANTED)
    assert allowance.bytes == WANTED


def test_a_limit_below_the_first_size_is_the_clients_own_affair() -> None:
    allowance = Allowance()
    allowance.earn(WANTED, 1_000)
    assert allowance.bytes == SMALL_BYTES
