"""Rolling restarts: in which order, when not, and what is done about trouble on the way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mq.cli import nodes as nodes_module
from mq.cli import restart as module
from mq.cli.cluster import cluster
from mq.cli.nodes import Seen
from mq.cli.restart_plan import plan, unfit
from mq.errors import IllegalMembership, Unreachable
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

if TYPE_CHECKING:
    from pathlib import Path


def status(
    role: str = "follower", behind: int = 0, *, is_followed: bool = True, **fields: Any
) -> pb.BrokerStatusResponse:
    given: dict[str, Any] = {
        "role": role,
        "leader_id": "n1",
        "is_ready": True,
        "is_voter": True,
        "version": "0.1.0",
    }
    if role == "leader":
        given["followers"] = [pb.FollowerStatus(node_id="n2", behind=behind, is_voter=is_followed)]
    return pb.BrokerStatusResponse(**{**given, **fields})


def seen(node_id: str, found: pb.BrokerStatusResponse | None, trouble: str = "") -> Seen:
    leads = found is not None and found.role == "leader"
    return Seen("a", node_id, f"{node_id}:8081", "", leads, found, trouble)


JOINING = pb.FollowerStatus(node_id="n9")
THREE = [seen("n2", status()), seen("n1", status("leader")), seen("n0", status())]


def test_followers_go_first_then_the_leadership_then_the_old_leader() -> None:
    steps = plan("a", THREE).steps
    found = [(step.action, step.node_id) for step in steps]
    assert found == [("restart", "n0"), ("restart", "n2"), ("transfer", "n1"), ("restart", "n1")]
    assert plan("a", THREE).notes == []


@pytest.mark.parametrize(
    ("nodes", "trouble"),
    [
        ([*THREE[:2], seen("n0", None, "connection refused")], "n0: connection refused"),
        ([*THREE[:2], seen("n0", status(is_voter=False))], "n0: does not vote"),
        ([*THREE[:2], seen("n0", status(leader_id=""))], "n0: knows of no leader"),
        ([*THREE[:2], seen("n0", status(last_index=1001))], "n0: 1,001 entries to apply"),
        ([THREE[0], seen("n1", status("leader", is_followed=False)), THREE[2]], "n2: does not an"),
        ([THREE[0], seen("n1", status("leader", behind=1001)), THREE[2]], "n2: 1,001 entries"),
        ([THREE[0], seen("n1", status()), THREE[2]], "no node leads"),
        ([THREE[0], seen("n1", status("leader", joining=JOINING)), THREE[2]], "n9: it is being"),
        ([seen("n2", status("leader")), *THREE[1:]], "n2 and n1 lead"),
    ],
)
def test_a_set_that_is_not_fit_is_not_touched(nodes: list[Seen], trouble: str) -> None:
    found = plan("a", nodes)
    assert found.steps == []
    assert len(found.troubles) == 1
    assert found.troubles[0].startswith(trouble)
    assert unfit(nodes) == found.troubles


def test_a_busy_follower_does_not_block_a_restart() -> None:
    """Under load no follower has applied all that it knows of."""
    busy = [seen("n0", status(is_ready=False, last_index=900)), *THREE[:2]]
    assert unfit(busy) == []


def test_a_node_alone_is_restarted_with_a_word_on_what_that_means() -> None:
    found = plan("a", [seen("n1", status("leader"))])
    assert [(step.action, step.node_id) for step in found.steps] == [("restart", "n1")]
    assert "clients wait" in found.notes[0]


# -- carried out -----------------------------------------------------------------------------------


class Nodes(FakeAdmin):
    """Three of a set, which restart when a command says so to a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.leader = "n1"
        self.starts = {"n0": 1, "n1": 1, "n2": 1}
        self.refusals = 0
        self._lock = threading.Lock()
        super().__init__(
            route=self._route, broker_status=self._status, transfer_leadership=self._transfer
        )

    def _route(self) -> RouteResponse:
        nodes = [NodeRoute(node_id=one, address=f"{one}:8081") for one in self.starts]
        broker_set = BrokerSet(name="a", leader_id=self.leader, term=1, nodes=nodes)
        return RouteResponse(cluster="mq", broker_sets=[broker_set])

    def _status(self, server: str) -> pb.BrokerStatusResponse:
        node_id = server.partition(":")[0]
        with self._lock:
            for asked in self.directory.glob("*.asked"):
                asked.unlink()
                self.starts[asked.stem] += 1
        if (self.directory / f"{node_id}.dead").exists():
            raise Unreachable("gone")
        role = "leader" if node_id == self.leader else "follower"
        return status(role, started_at_ms=self.starts[node_id], leader_id=self.leader)

    def _transfer(self, *, broker_set: str) -> pb.TransferLeadershipResponse:
        assert broker_set == "a"
        if self.refusals:
            self.refusals -= 1
            raise IllegalMembership("n0 did not take over")
        self.leader = "n0" if self.leader != "n0" else "n1"
        return pb.TransferLeadershipResponse(leader_id=self.leader, term=2)


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(nodes_module, "trouble_at", lambda _: "")
    monkeypatch.setattr(module, "_LOOK_S", 0.001)
    monkeypatch.setattr(module, "_FIRST_LOOK_S", 0.0)
    return Nodes(tmp_path)


def test_the_plan_is_printed_and_nothing_is_done(admin: Nodes) -> None:
    result = run(cluster, "restart-plan", admin=admin)
    assert result.exit_code == 0
    assert_fits(result.stdout)
    order = [line.split()[2] for line in result.stdout.splitlines() if ". Restart" in line]
    assert order == ["n0", "n2", "n1"]
    assert "mq cluster transfer-leader --set a" in result.stdout
    assert "0.1.0" in result.stdout
    assert admin.called("transfer_leadership") == []
    (document,) = run_json(cluster, "restart-plan", admin=admin)["sets"]
    assert [step["action"] for step in document["steps"]] == [
        *("restart", "restart", "transfer", "restart")
    ]


def test_a_restart_goes_node_by_node(admin: Nodes) -> None:
    command = (
        f"echo restarting {{set}}/{{node}} {{address}}; touch {admin.directory}/{{node}}.asked"
    )
    result = run(cluster, "restart-plan", "--run", command, admin=admin)
    assert result.exit_code == 0, result.output
    assert admin.starts == {"n0": 2, "n1": 2, "n2": 2}
    assert len(admin.called("transfer_leadership")) == 1
    assert admin.leader == "n0"
    assert "Done: 3 nodes" in result.stdout


def test_a_node_that_became_leader_meanwhile_hands_over_first(admin: Nodes) -> None:
    # n2 leads by the time that it is its turn, and again before n1's.
    admin.leader = "n2"
    command = f"touch {admin.directory}/{{node}}.asked"
    planned = plan("a", THREE)
    rolling = module.Rolling(admin, command, 5.0, say=lambda _: None)  # type: ignore[arg-type]
    done = rolling.restart_set(planned)
    assert [one["node_id"] for one in done] == ["n0", "n2", "n1"]
    assert len(admin.called("transfer_leadership")) == 1
    assert admin.leader == "n0"


def test_a_leader_that_cannot_hand_over_is_not_stopped(admin: Nodes) -> None:
    command = f"touch {admin.directory}/{{node}}.asked"
    admin.refusals = 2
    assert run(cluster, "restart-plan", "--run", command, admin=admin).exit_code == 0
    assert admin.starts == {"n0": 2, "n1": 2, "n2": 2}
    admin.refusals = 1 << 30
    flags = ("--run", command, "--wait-s", "0.1")
    result = run(cluster, "restart-plan", *flags, admin=admin)
    assert result.exit_code == 1
    assert "a/n0 still leads: n0 did not take over" in result.stderr
    assert "Restarted: a/n1, a/n2" in result.stderr
    assert admin.starts["n0"] == 2


def test_a_refusal_names_the_node(admin: Nodes) -> None:
    (admin.directory / "n2.dead").touch()
    result = run(cluster, "restart-plan", "--run", "false", admin=admin)
    assert result.exit_code == 1
    assert "a: n2: does not answer" in result.stderr
    assert admin.starts == {"n0": 1, "n1": 1, "n2": 1}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "`exit 3` ended with 3. Nothing was restarted yet"),
        ("true", "is still the process that it was"),
        ("touch {directory}/{node}.asked {directory}/{node}.dead", "n0: does not answer"),
        (
            "touch {directory}/{node}.asked; test {node} != n2 || touch {directory}/n0.dead",
            "n0: does not answer. Restarted: a/n0",
        ),
    ],
)
def test_the_first_trouble_ends_it(admin: Nodes, command: str, reason: str) -> None:
    command = command.replace("{directory}", str(admin.directory))
    flags = ("--run", command, "--wait-s", "0.05")
    result = run(cluster, "restart-plan", *flags, admin=admin)
    assert result.exit_code == 1
    assert reason in result.stderr, result.stderr
    assert "plan again" in result.stderr
    assert admin.starts["n1"] == 1


def test_a_command_that_hangs_ends_it(admin: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMAND_S", 0.1)
    flags = ("--run", "exec sleep 60", "--wait-s", "0.05")
    result = run(cluster, "restart-plan", *flags, admin=admin)
    assert result.exit_code == 1
    assert "a/n0: `exec sleep 60` did not end in 0.1 s and was killed" in result.stderr
    assert admin.starts == {"n0": 1, "n1": 1, "n2": 1}


def test_an_unknown_set_is_refused(admin: Nodes) -> None:
    result = run(cluster, "restart-plan", "--set", "b", admin=admin)
    assert result.exit_code == 1
    assert "there is no broker set 'b': the cluster has a" in result.stderr
