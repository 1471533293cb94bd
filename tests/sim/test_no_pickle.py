"""PySyncObj pickles everything by itself; here it never does, neither for the wire nor the disk."""

from __future__ import annotations

import pickle
from typing import NoReturn

import pytest
from pysyncobj import pickle as pysyncobj_pickle

from tests.sim.faults import run_seed


@pytest.mark.parametrize("seed", [8, 11, 12])
def test_whole_histories_pass_without_pickle(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With crashes, changes of members and logs that start over: no code unpickles."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("pickle was used")

    for module in (pickle, pysyncobj_pickle):
        for name in ("dump", "dumps", "load", "loads"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refuse)
    world = run_seed(seed)
    assert world.ledger.acknowledged
