"""The image as a pod of deploy/helm/mq runs it: its user, its files, a read-only file system."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.access import keys
from tests.chaos.docker_engine import why_not
from tests.support.waiting import poll

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def image() -> str:
    if reason := why_not():
        pytest.skip(reason)
    name = "mq:local"
    build = ["docker", "build", "--quiet", "--file", "deploy/Dockerfile", "--tag", name, "."]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=600)
    return name


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """As Kubernetes mounts one: files of root, which the group of the pod reads."""
    if os.geteuid() != 0:
        pytest.skip("files of root can be made by root alone")
    root = keys.new().text
    texts = {"root.key": root, "first-admin": f"root:{root}", "cluster.key": keys.new().text}
    for name, text in {**texts, "secret.key": "s" * 48}.items():
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o440)
        os.chown(path, 0, 10_001)
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def pod(image: str, secret: Path) -> Iterator[str]:
    """A container with the security context, the environment and the files of deploy/helm/mq."""
    name = f"mq-pod-{uuid.uuid4().hex[:8]}"
    options = {
        "MQ_NODE_ID": "mq-a-0",
        "MQ_RAFT_MEMBERS": "mq-a-0=mq-a-0:8082",
        "MQ_RAFT_LISTEN": "0.0.0.0:8082",
        "MQ_AUTH_MODE": "required",
        "MQ_AUTH_BOOTSTRAP_ADMIN_FILE": "/auth/first-admin",
        "MQ_AUTH_CLUSTER_KEY_FILE": "/auth/cluster.key",
        "MQ_AUTH_SECRET_KEY_FILE": "/auth/secret.key",
    }
    flags = [part for one in options.items() for part in ("--env", "=".join(one))]
    flags += ["--read-only", "--user", "10001:10001", "--cap-drop", "ALL"]
    flags += ["--security-opt", "no-new-privileges", "--volume", f"{secret}:/auth:ro"]
    done = docker("run", "--detach", "--name", name, *flags, image, "server")
    assert done.returncode == 0, done.stderr
    yield name
    print(docker("logs", name).stdout)  # noqa: T201 - shown with a failure
    docker("rm", "--force", "--volumes", name)


def test_a_pod_of_the_chart_serves_and_ends_by_itself(pod: str) -> None:
    ready = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5557/readyz')"
    poll(lambda: docker("exec", pod, "python3", "-c", ready).returncode == 0, "it is ready")
    asked = ("exec", pod, "mq", "cluster", "status", "--api-key-file", "/auth/root.key")
    poll(lambda: docker(*asked).returncode == 0, "the key of the Secret opens it")
    assert docker("stop", "--time", "30", pod).returncode == 0
    code = docker("inspect", "--format", "{{.State.ExitCode}}", pod).stdout.strip()
    assert code == "0", docker("logs", pod).stderr
