"""`mq.testing`: the example project runs as it stands, and a broker that cannot start says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mq.client import Admin
from mq.errors import NodeStopped
from mq.testing import Broker
from tests.support.readme import ROOT, environment
from tests.support.waiting import DEADLINE_S

EXAMPLE = ROOT / "examples" / "testing"


def run_example(**variables: str) -> str:
    """What its tests print; all of them pass."""
    arguments = ("-p", "no:cacheprovider", "--rootdir", ".", "-q", "-c", os.devnull, ".")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=EXAMPLE,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_project_passes() -> None:
    assert "2 passed, 1 skipped" in run_example()


def test_options_are_those_of_the_server_and_data_go_with_the_broker(tmp_path: Path) -> None:
    with Broker(store_flush="async") as broker:
        with Admin(broker.address) as admin:
            options = {one.name: one.value for one in admin.get_config(broker.address)}
        assert options["store.flush"] == "async"
        home = broker._data.parent
        assert home.exists()
        assert broker.stop() == 0
    assert not home.exists()
    with Broker(tmp_path / "kept") as broker:
        assert broker.is_running
    assert (tmp_path / "kept" / "data").exists()


def test_a_broker_that_does_not_come_up_says_why() -> None:
    refused = pytest.raises(NodeStopped, match="--store-flush: 'perhaps'")
    with refused, Broker(store_flush="perhaps"):
        pass
