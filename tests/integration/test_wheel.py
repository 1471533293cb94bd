"""The package as an index would have it: built, installed alone, used by the program of README."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.readme import ADDRESS, README, ROOT, environment, section

REPOSITORY = "https://example.org/mq"
DEADLINE_S = 300


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd="/",
        env=environment(PIP_DISABLE_PIP_VERSION_CHECK="1", **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
    run(*pip, ROOT, MQ_REPOSITORY_URL=REPOSITORY)
    (built,) = folder.glob("*.whl")
    return built


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_links_of_the_readme_work_elsewhere_and_lead_to_files(wheel: Path) -> None:
    head, _, readme = metadata(wheel).partition("\n\n")
    assert f"Project-URL: Repository, {REPOSITORY}\n" in head
    targets = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", README))
    for target in targets:
        found = re.fullmatch(rf"{REPOSITORY}/(?:blob|raw)/v[0-9.]+/([^#]+)(?:#.*)?", target)
        assert found, target
        assert (ROOT / found[1]).exists(), target


def test_a_client_alone_runs_the_program_of_the_readme(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    installed = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    names = {one["name"].lower().replace("_", "-") for one in installed}
    # grpcio needs typing-extensions.
    assert names - {"pip", "setuptools"} == {"mq", "grpcio", "lz4", "protobuf", "typing-extensions"}
    program = re.findall(r"```python\n(.*?)```", section("### Python"), re.DOTALL)[0]
    with BrokerProcess(tmp_path / "data") as broker:
        printed = run(python, "-W", "error", "-c", program.replace(ADDRESS, broker.address))
    assert "b'order 7 is paid' paid" in printed
