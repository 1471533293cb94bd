"""Errors as callers meet them: one code a class, one class a code."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest

from mq import errors
from mq.errors import (
    ClientClosed,
    Code,
    LogDamaged,
    MessagesDamaged,
    MqError,
    NoLeader,
    Unreachable,
)

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, MqError) and value is not MqError
]
# What happens again at the same call is not retryable; these pass by themselves.
RETRYABLE = {
    Code.DISK_FULL,
    Code.SEGMENT_FULL,
    Code.NOT_LEADER,
    Code.OUTCOME_UNKNOWN,
    Code.FLOW_CONTROL,
    Code.NODE_STOPPED,
    Code.FLUSH_TIMEOUT,
    Code.REPLICATION_TIMEOUT,
    Code.REBALANCING,
    Code.REBUILDING,
    Code.UNREACHABLE,
    Code.MESSAGES_DAMAGED,
    Code.NO_LEADER,
}
# Handlers of the second kind catch these too; all others are of no other kind.
ALSO: dict[type[MqError], tuple[type[Exception], ...]] = {
    ClientClosed: (MqError, RuntimeError),
    MessagesDamaged: (LogDamaged,),
    NoLeader: (Unreachable,),
}


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_has_a_code_of_its_own(error: type[MqError]) -> None:
    assert isinstance(vars(error).get("code"), Code)
    assert error.__bases__ == ALSO.get(error, (MqError,))


def test_no_two_errors_share_a_code() -> None:
    assert [code for code, count in Counter(one.code for one in CLASSES).items() if count > 1] == []


def test_every_code_has_an_error() -> None:
    assert {error.code for error in CLASSES} == set(Code)


@pytest.mark.parametrize("code", Code)
def test_a_code_reads_as_it_is_named(code: Code) -> None:
    assert code.value == code.name


@pytest.mark.parametrize("error", CLASSES)
def test_a_code_is_the_name_of_its_error(error: type[MqError]) -> None:
    assert error.code.name.replace("_", "").lower() == error.__name__.lower()


@pytest.mark.parametrize("error", CLASSES)
def test_only_what_passes_by_itself_is_retryable(error: type[MqError]) -> None:
    assert error.retryable is (error.code in RETRYABLE)


def test_damage_names_the_file_the_place_and_the_remedy() -> None:
    error = LogDamaged("commitlog/0.log", 4096, "the checksum is wrong", "Restore the file.")
    assert (error.path, error.position, error.reason) == (
        "commitlog/0.log",
        4096,
        "the checksum is wrong",
    )
    for part in ("commitlog/0.log", "4096", "the checksum is wrong", "Restore the file."):
        assert part in str(error)
