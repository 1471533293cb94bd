"""Every broker answers for the whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.client import Admin
from tests.support.broker_cluster import BrokerCluster

if TYPE_CHECKING:
    from pathlib import Path


def test_brokers_of_different_sets_find_each_other_by_one_seed(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, "a", "b", "c") as cluster:
        for address in cluster.nodes:
            with Admin(address) as admin:
                assert [one.name for one in admin.route().broker_sets] == ["a", "b", "c"]
