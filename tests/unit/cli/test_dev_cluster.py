"""The plan of `mq dev-cluster`: which nodes, which ports, and that a directory keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq.cli import dev_cluster as module
from mq.cli.dev_cluster import Cluster, Node, plan
from mq.errors import IllegalConfig, PortUnavailable


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that are not free."""
    ports: set[int] = set()
    monkeypatch.setattr(module, "is_free", lambda _host, port: port not in ports)
    return ports


def test_a_new_cluster_has_three_nodes_from_the_default_port_on(tmp_path: Path) -> None:
    assert plan(tmp_path / "new", None, None) == [
        Node("node-0", 8081, 8082, 8083),
        Node("node-1", 8091, 8092, 8093),
        Node("node-2", 8101, 8102, 8103),
    ]


def test_a_second_start_keeps_nodes_and_ports(tmp_path: Path) -> None:
    first = plan(tmp_path, 2, 9000)
    assert plan(tmp_path, None, None) == first
    assert plan(tmp_path, 2, 9000) == first
    assert plan(tmp_path, None, 0) == first


def test_other_nodes_or_ports_than_those_of_the_directory_are_refused(tmp_path: Path) -> None:
    plan(tmp_path, 2, 9000)
    with pytest.raises(IllegalConfig, match="a cluster of 2 nodes, not 3"):
        plan(tmp_path, 3, None)
    with pytest.raises(IllegalConfig, match="first port is 9000, not 9001"):
        plan(tmp_path, None, 9001)


def test_taken_ports_are_named_with_what_they_are_for(tmp_path: Path, taken: set[int]) -> None:
    taken.update({8081, 8092, 8103})
    with pytest.raises(PortUnavailable) as caught:
        plan(tmp_path, None, 8081)
    text = str(caught.value)
    assert "port 8081 (node-0, for clients), 8092 (node-1, for the other nodes), 8103" in text
    assert "--port 0" in text
    # Nothing is fixed by a start that did not happen.
    assert list(tmp_path.iterdir()) == []


def test_beside_a_broker_on_the_default_port_a_new_cluster_takes_other_ports(
    tmp_path: Path, taken: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    taken.update({8081, 8192})
    assert [node.port for node in plan(tmp_path, None, None)] == [8281, 8291, 8301]
    said = capsys.readouterr().err
    assert "taken on 127.0.0.1: port 8081 (node-0, for clients)" in said
    assert "the ports are 8281 to 8303" in said


def test_taken_ports_are_found_at_a_second_start_too(tmp_path: Path, taken: set[int]) -> None:
    plan(tmp_path, 1, None)
    taken.add(8082)
    with pytest.raises(PortUnavailable, match="8082"):
        plan(tmp_path, None, None)


def test_a_port_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IllegalConfig, match="need ports up to 65540"):
        plan(tmp_path, 2, 65_528)


@pytest.mark.parametrize("text", ["", "{}", '{"nodes": [{"name": "a"}]}', '{"nodes": []}', "[1]"])
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dev-cluster.json").write_text(text)
    with pytest.raises(IllegalConfig, match=r"dev-cluster\.json"):
        plan(tmp_path, None, None)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IllegalConfig, match="cannot be written"):
        plan(tmp_path / "file" / "below", None, None)


def test_every_node_knows_all_members(tmp_path: Path) -> None:
    nodes = plan(tmp_path, 2, 9000)
    command = Cluster(tmp_path, nodes).command(nodes[1])
    flags = dict(zip(command[1::2], command[2::2], strict=True))
    assert command[0] == "server"
    assert flags["--raft-members"] == "node-0=127.0.0.1:9001,node-1=127.0.0.1:9011"
    assert (flags["--node-id"], flags["--port"]) == ("node-1", "9010")
    assert flags["--data"] == str(tmp_path / "node-1")


def test_several_sets_have_nodes_of_their_own_and_know_the_others(tmp_path: Path) -> None:
    nodes = plan(tmp_path, 2, 9000, 2)
    assert [(node.name, node.broker_set) for node in nodes] == [
        *(("node-0", "set-0"), ("node-1", "set-0"), ("node-2", "set-1"), ("node-3", "set-1"))
    ]
    command = Cluster(tmp_path, nodes).command(nodes[2])
    flags = dict(zip(command[1::2], command[2::2], strict=True))
    assert flags["--raft-members"] == "node-2=127.0.0.1:9021,node-3=127.0.0.1:9031"
    assert flags["--node-broker-set"] == "set-1"
    assert flags["--broker-seeds"] == "127.0.0.1:9000,127.0.0.1:9010"
    assert plan(tmp_path, 2, None) == plan(tmp_path, None, None, 2) == nodes
    with pytest.raises(IllegalConfig, match="a cluster of 2 sets, not 1"):
        plan(tmp_path, None, None, 1)
    with pytest.raises(IllegalConfig, match="a cluster of 2 nodes, not 4"):
        plan(tmp_path, 4, None)


def test_the_file_is_for_people_to_read(tmp_path: Path) -> None:
    plan(tmp_path, 1, 9000)
    document = json.loads((tmp_path / "dev-cluster.json").read_text())
    assert document == {
        "nodes": [{"name": "node-0", "port": 9000, "raft_port": 9001, "metrics_port": 9002}]
    }
