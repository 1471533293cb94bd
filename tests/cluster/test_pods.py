"""What Kubernetes does to brokers: names that appear late, other addresses after a restart, SIGTERM
with half a minute, a volume that comes back on another node. Real brokers in network namespaces.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from mq.access import keys
from tests.support import pod_network
from tests.support.pod_network import DOMAIN, Pod, PodNetwork
from tests.support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE_S = 30.0  # terminationGracePeriodSeconds
NAMES = ("mq-a-0", "mq-a-1", "mq-a-2")


class Brokers:
    """A StatefulSet: pods by name, each with its volume. Environment as in deploy/helm/mq, with its
    keys: of the first administrator, and of the cluster.
    """

    def __init__(self, network: PodNetwork, directory: Path) -> None:
        self._directory = directory
        root = keys.new().text
        self.root_key = self._secret("root.key", root)
        self._first_admin = self._secret("first-admin", f"root:{root}")
        self._cluster_key = self._secret("cluster.key", keys.new().text)
        self.pods = {name: network.pod(name) for name in NAMES}

    @property
    def servers(self) -> str:
        return ",".join(f"{name}.{DOMAIN}:8081" for name in NAMES)

    def _secret(self, name: str, text: str) -> str:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    def start(self, *names: str) -> None:
        for name in names:
            environment = {
                "MQ_NODE_ID": name,
                "MQ_NODE_BROKER_SET": "a",
                "MQ_NODE_DATA": str(self._directory / name),
                "MQ_BROKER_HOST": "0.0.0.0",  # noqa: S104 - in a namespace
                "MQ_BROKER_ADVERTISED": f"{name}.{DOMAIN}:8081",
                "MQ_BROKER_SEEDS": self.servers,
                "MQ_METRICS_HOST": "0.0.0.0",  # noqa: S104
                "MQ_RAFT_MEMBERS": ",".join(f"{one}={one}.{DOMAIN}:8082" for one in NAMES),
                "MQ_RAFT_LISTEN": "0.0.0.0:8082",
                "MQ_AUTH_MODE": "required",
                "MQ_AUTH_BOOTSTRAP_ADMIN_FILE": self._first_admin,
                "MQ_AUTH_CLUSTER_KEY_FILE": self._cluster_key,
            }
            with (self._directory / f"{name}.log").open("a") as log:
                self.pods[name].start(["-m", "mq", "server"], environment, output=log)

    def lose_volume(self, name: str) -> None:
        shutil.rmtree(self._directory / name)

    def wait_ready(self, *names: str) -> None:
        for name in names:
            # B023, here and below: `poll` has called the function for the last time when the loop
            # goes on.
            poll(lambda: self.pods[name].get("/readyz") == 200, f"{name} is ready")  # noqa: B023

    def wait_said(self, name: str, what: str) -> None:
        log = self._directory / f"{name}.log"
        poll(lambda: what in log.read_text(), f"{name} says {what}")

    def lead(self, name: str) -> bool:
        """Lets this node lead; False: it cannot right now."""
        return self._transfer(name, name).returncode == 0

    def pre_stop(self, name: str) -> str:
        """As the chart has it; the node that leads then."""
        done = self._transfer(name, "--from", name)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["leader_id"])

    def _transfer(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In the pod of this name, by what it has: the key of the cluster."""
        command = ["-m", "mq", "cluster", "transfer-leader", *arguments, "--set", "a", "--json"]
        command += ["--server", f"{name}.{DOMAIN}:8081", "--api-key-file", self._cluster_key]
        return subprocess.run(
            self.pods[name].inside(*command),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def logs(self) -> str:
        texts = [(path.name, path.read_text()) for path in sorted(self._directory.glob("*.log"))]
        return "\n".join(f"--- {name}\n{text[-4_000:]}" for name, text in texts)


class Client:
    """Sends from its own pod, all the time."""

    def __init__(self, pod: Pod, brokers: Brokers) -> None:
        arguments = ["-m", "tests.support.pod_client", brokers.servers, "numbers", brokers.root_key]
        self._process = pod.start(arguments)

    def wait_stored(self) -> Self:
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline()) == {"stored": 1}
        return self

    def end(self) -> dict[str, Any]:
        out, _ = self._process.communicate(timeout=300)
        found = json.loads(out)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def network() -> Iterator[PodNetwork]:
    if reason := pod_network.why_not():
        pytest.skip(reason)
    with PodNetwork() as network:
        yield network


@pytest.fixture
def brokers(network: PodNetwork, tmp_path: Path) -> Iterator[Brokers]:
    found = Brokers(network, tmp_path)
    yield found
    print(found.logs())  # noqa: T201 - shown with a failure


def test_a_pod_that_moves_leaves_the_others_their_dns_server(network: PodNetwork) -> None:
    """Of the network of these tests: pods that stay know where it is, and ask nobody."""
    pod, before = network.pod("mover"), network.hub_mac()
    pod.move()
    assert network.hub_mac() == before


def test_pods_start_one_by_one_while_their_names_do_not_resolve_yet(
    network: PodNetwork, brokers: Brokers
) -> None:
    first, second, third = brokers.pods.values()
    brokers.start(first.name)
    poll(lambda: first.get("/livez") == 200, "the first lives, without any name")
    # It waits, and is not restarted for it.
    assert first.get("/readyz") == 503
    brokers.start(second.name)
    poll(lambda: second.get("/livez") == 200, "the second lives")
    assert second.get("/readyz") == 503
    network.publish(first, second)
    brokers.wait_ready(first.name, second.name)
    brokers.start(third.name)
    poll(lambda: third.get("/livez") == 200, "the third lives")
    network.publish(third)
    brokers.wait_ready(third.name)
    # Without its volume it copies the log, and is ready when it votes again.
    third.kill()
    brokers.lose_volume(third.name)
    brokers.start(third.name)
    brokers.wait_said(third.name, "this node does not vote until it has caught up")
    brokers.wait_ready(third.name)
    brokers.wait_said(third.name, "caught up: this node votes again")


def test_a_rolling_update_with_other_addresses_fails_no_send(
    network: PodNetwork, brokers: Brokers
) -> None:
    """Each pod leads when it has to go. It comes back with its volume, another address, and a name
    that is stale for a while: the client's addresses are all wrong in the end.
    """
    network.publish(*brokers.pods.values())
    brokers.start(*NAMES)
    brokers.wait_ready(*NAMES)
    client = Client(network.pod("client"), brokers).wait_stored()
    for name in reversed(NAMES):
        pod = brokers.pods[name]
        poll(lambda: brokers.lead(name), f"{name} leads")  # noqa: B023
        if name == "mq-a-1":  # the others go by SIGTERM alone
            assert brokers.pre_stop(name) != name
            # As a follower, when it has heard of the new leader.
            poll(lambda: pod.get("/readyz") == 200, f"{name} is ready")  # noqa: B023
            # Again, by then as a follower: nothing changes.
            assert brokers.pre_stop(name) != name
        assert pod.terminate(GRACE_S) == 0
        pod.move()
        brokers.start(name)
        poll(lambda: pod.get("/livez") == 200, f"{name} lives again")  # noqa: B023
        network.publish(pod)
        brokers.wait_ready(name)
    said = client.end()
    assert (said["failed"], said["lost"], said["is_in_order"]) == ([], [], True)


def test_a_set_whose_nodes_all_died_comes_back_with_other_addresses_and_all_its_data(
    network: PodNetwork, brokers: Brokers
) -> None:
    network.publish(*brokers.pods.values())
    brokers.start(*NAMES)
    brokers.wait_ready(*NAMES)
    client = Client(network.pod("client"), brokers).wait_stored()
    for pod in brokers.pods.values():
        pod.kill()
        pod.move()
    # A StatefulSet gives out names before pods are ready, in no order.
    brokers.start(*NAMES)
    network.publish(*brokers.pods.values())
    brokers.wait_ready(*NAMES)
    said = client.end()
    assert (said["failed"], said["lost"], said["is_in_order"]) == ([], [], True)


def test_a_client_keeps_asking_for_names_that_do_not_resolve(
    network: PodNetwork, brokers: Brokers
) -> None:
    """As of pods that no machine has room for. gRPC by itself asks for such a name after pauses of
    1, 1.6, 2.6 s and so on up to two minutes, and brokers that are back would be missed as long.
    """
    network.publish(*brokers.pods.values())
    brokers.start(*NAMES)
    brokers.wait_ready(*NAMES)
    pod = network.pod("client")
    client = Client(pod, brokers).wait_stored()
    network.withdraw(*brokers.pods.values())
    for one in brokers.pods.values():
        one.kill()
        one.move()
    network.questions.clear()
    for one in brokers.pods.values():
        # With the pauses of gRPC it would be four minutes.
        poll(
            lambda: network.questions[pod.address, one.host] >= 12,  # noqa: B023
            f"the client asks for {one.name} again and again",
        )
    brokers.start(*NAMES)
    network.publish(*brokers.pods.values())
    brokers.wait_ready(*NAMES)
    said = client.end()
    assert (said["lost"], said["is_in_order"]) == ([], True)


def test_a_broker_ends_in_time_while_no_dns_server_answers(
    network: PodNetwork, brokers: Brokers
) -> None:
    """The others ask for the address of the one that is down, and get no answer."""
    network.publish(*brokers.pods.values())
    brokers.start(*NAMES)
    brokers.wait_ready(*NAMES)
    first, second, third = brokers.pods.values()
    network.answers = False
    third.kill()
    brokers.wait_said(first.name, '"peer not reached", "peer": "mq-a-2"')
    brokers.wait_said(second.name, '"peer not reached", "peer": "mq-a-2"')
    assert first.get("/readyz") == second.get("/readyz") == 200
    assert first.terminate(GRACE_S) == 0
    assert second.terminate(GRACE_S) == 0
