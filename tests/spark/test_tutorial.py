"""docs/SPARK.md: its commands typed, its programs run, its tables compared with the code."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mq_spark
from mq_spark.offline.log_reader import LOG_OPTIONS
from mq_spark.options import READ_OPTIONS
from mq_spark.pipelines.etl import queries
from mq_spark.schema import spark_schema
from mq_spark.writing.writer import _COLUMNS, WRITE_OPTIONS
from tests.support.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8081"
DEADLINE_S = 300  # of a busy machine
# A Java that lives for seconds is done sooner without its second compiler.
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def section(heading: str, page: str = PAGE) -> str:
    """Up to the next heading of the same depth or less."""
    depth = heading.index(" ")
    text = page.partition(f"\n{heading}\n")[2]
    assert text, heading
    return re.split(rf"^#{{1,{depth}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def commands(text: str) -> list[str]:
    """The lines of indented blocks, without their comments."""
    lines = re.findall(r"^ {4}(mq .*)$", text, re.MULTILINE)
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def table(heading: str) -> dict[str, list[str]]:
    """Cells by what the first one names in backticks."""
    rows = re.findall(r"^\| (`[^|]*) \|(.*)\|$", section(heading), re.MULTILINE)
    # A bar within a cell is written with a backslash.
    return {
        name: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)]
        for names, rest in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def shell(command: str, folder: Path, server: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],  # noqa: S607
        cwd=folder,
        env={**kept, "PATH": path, "COLUMNS": "140", "MQ_SERVER": server, **QUICK_JAVA},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


# -- tables ----------------------------------------------------------------------------------------


def test_the_options_are_those_of_the_code() -> None:
    reading = table("### Options for reading")
    assert sorted(reading) == sorted(READ_OPTIONS)
    assert {name for name, cells in reading.items() if "path" in cells[1]} == set(LOG_OPTIONS)
    assert sorted(table("### Options for writing")) == sorted(WRITE_OPTIONS)


def test_the_columns_are_those_of_the_code() -> None:
    assert list(table("### Columns")) == spark_schema(with_properties=True).fieldNames()
    assert list(table("### Columns for writing")) == list(_COLUMNS)


def test_the_parameters_of_the_sink_are_those_of_the_code() -> None:
    assert list(table("### foreachBatch")) == list(inspect.signature(mq_spark.sink).parameters)


def test_the_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= anchors
    files = set(re.findall(r"\]\(([^)#]+)", PAGE))
    assert {one for one in files if not (ROOT / "docs" / one).exists()} == set()
    for image in (ROOT / "docs" / "images").glob("*.png"):
        assert image.stat().st_size < 100_000


# -- programs --------------------------------------------------------------------------------------


def test_the_programs_run(
    spark: SparkSession, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # That of the README takes another topic for its own.
    readme = section("## Spark", README).replace('"orders"', '"greetings"')
    programs = re.findall(r"^```python\n(.*?)^```", PAGE + readme, re.DOTALL | re.MULTILINE)
    source = inspect.getsource(queries)
    excerpts = [program for program in programs if program in source]
    assert len(excerpts) == 1
    for program in programs:
        if program in excerpts:
            continue
        if "/backups/" in program:
            shell(f"mq backup create {tmp_path}/backup", tmp_path, server)
        ready = program.replace(ADDRESS, server).replace(
            "/backups/2026-11-16", f"{tmp_path}/backup"
        )
        # A relative path would be Java's, which is where the tests were started.
        ready = re.sub(r'"(\w+\.checkpoint)"', rf'"{tmp_path}/\1"', ready)
        exec(compile(ready, "docs/SPARK.md", "exec"), {})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "body='hello" in printed
    assert printed.splitlines()[1] == "100"
    assert "greetings" in printed
    for topic in ("shouts", "loud-orders"):
        shouts = spark.read.format("mq").options(servers=server, subscribe=topic).load()
        found = [bytes(row.body) for row in shouts.collect()]
        assert sorted(found) == sorted(b"HELLO %d" % at for at in range(100))


def test_the_commands_of_the_readme_and_the_page_are_legal(server: str, tmp_path: Path) -> None:
    typed = commands(section("## Spark", README)) + commands(section("## Pipelines"))
    assert len(typed) >= 10
    for command in typed:
        assert "Usage" in shell(f"{command} --help", tmp_path, server)


def test_the_pipelines_of_the_readme_run_one_after_the_other(server: str, tmp_path: Path) -> None:
    archive, replay, metrics, tutorial = commands(section("## Spark", README))
    # The first step of the tutorial, which is run below.
    assert tutorial == "mq spark etl produce"
    shell('mq produce orders "order 7 is paid" --tag paid', tmp_path, server)
    assert "Archived " in shell(archive, tmp_path, server)
    shell(replay, tmp_path, server)
    assert "order 7 is paid\n" in shell("mq consume orders-again", tmp_path, server)
    assert "orders" in shell(metrics, tmp_path, server)


# -- the tutorial ----------------------------------------------------------------------------------


def test_the_tutorial_as_written(server: str, tmp_path: Path) -> None:
    typed = commands(section("## Tutorial: a shop"))
    as_stream = commands(section("### 4. As a stream, and killed"))
    assert typed[0] == "mq server"
    typed = [one for one in typed[1:] if one not in as_stream]
    assert len(typed) >= 8
    printed = {one: shell(one, tmp_path, server) for one in typed}

    def of(start: str) -> str:
        (found,) = [text for one, text in printed.items() if one.startswith(start)]
        return found

    # What the page shows is what is printed.
    shown = re.findall(
        r"^```text\n(.*?)```", section("## Tutorial: a shop"), re.DOTALL | re.MULTILINE
    )
    for start, text in zip(("mq spark etl produce", "mq spark etl report"), shown, strict=True):
        assert [line.split() for line in text.splitlines()] == [
            line.split() for line in of(start).strip().splitlines()
        ]
    assert "shop-payments" in of("mq topic list")
    assert of("mq consume shop-orders").count('"amount_cents') == 3
    assert of("mq consume shop-sales").count('"status":"unpaid"') == 3
    assert of("mq consume shop-sessions").count('"clicks"') == 3
    assert "shop-payments" in of("mq group describe")
    assert (tmp_path / "shop" / "report.png").read_bytes().startswith(b"\x89PNG")
    for command in as_stream:
        # They do not end by themselves: the options are legal.
        assert "Usage" in shell(f"{command} --help", tmp_path, server)
