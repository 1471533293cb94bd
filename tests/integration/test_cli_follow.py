"""`mq consume --follow` goes on when its broker was away, and says so: without a group too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.client import Producer
from tests.support.broker_process import BrokerProcess
from tests.support.following import Following

if TYPE_CHECKING:
    from pathlib import Path

BODIES = [f"after {number}" for number in range(20)]


@pytest.mark.parametrize("flags", [(), ("--group", "followers")], ids=["alone", "group"])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_follow_goes_on_after_a_restart_of_its_broker(
    tmp_path: Path, flags: tuple[str, ...], end: str
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address) as producer:
            producer.send("t", "before")
        with Following(broker.address, "t", *flags) as following:
            assert following.next_shown() == "before"
            if end == "stop":
                broker.stop()
            else:
                broker.kill()
            told = following.next_told()
            assert told.startswith(f"no broker answers, still trying: {broker.address}")
            broker.start()
            with Producer(broker.address, timeout_s=30) as producer:
                for body in BODIES:
                    producer.send("t", body)
            assert sorted(following.next_shown() for _ in BODIES) == sorted(BODIES)
            assert " answers, after " in following.next_told()
            assert following.interrupt() == 130
            # Nothing came twice.
            assert not following.next_shown()


def test_ctrl_c_ends_follow_while_its_broker_is_away(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address) as producer:
            producer.send("t", "before")
        with Following(broker.address, "t") as following:
            assert following.next_shown() == "before"
            broker.kill()
            assert following.next_told().startswith("no broker answers, still trying: ")
            assert following.interrupt() == 130


@pytest.mark.parametrize("flags", [(), ("--group", "followers")], ids=["alone", "group"])
def test_follow_may_begin_before_its_broker(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address) as producer:
            producer.send("t", "before")
        broker.stop()
        with Following(broker.address, "t", *flags) as following:
            told = following.next_told()
            assert told.startswith(f"no broker answers at {broker.address} (connection refused)")
            assert told.endswith("; still trying")
            broker.start()
            # It was said once.
            assert following.next_told() == "a broker answers"
            assert following.next_shown() == "before"
            assert following.interrupt() == 130
