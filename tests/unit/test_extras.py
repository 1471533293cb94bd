"""Extras: a missing package is named with the extra that brings it, and a client needs none."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from mq import extras

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# Packages that no program asks for by name: they come with others.
SILENT = {"typing-extensions", "uvloop"}


def distributions(extra: str) -> set[str]:
    """By their names, without those of other extras."""
    found = PROJECT["optional-dependencies"][extra]
    names = {one.partition("[")[0].partition(">")[0].partition("=")[0].strip() for one in found}
    return names - {"mq"} - SILENT


def test_every_package_of_an_extra_is_known_by_its_module() -> None:
    homes = packages_distributions()
    for extra, modules in extras.MODULES.items():
        homes_of = (home for module in modules for home in homes.get(module, ()))
        brought = {home.lower().replace("_", "-") for home in homes_of}
        missing = {module for module in modules if module not in homes}
        # What is not installed here, or brought by another extra, is not compared.
        if missing:
            continue
        other = {"numpy"} if extra == "arrow" else set()
        assert distributions(extra) - other <= brought, extra


@pytest.mark.parametrize(
    ("module", "extra"),
    [("numpy", "server"), ("pyarrow.compute", "arrow"), ("click", "cli"), ("nothing", "")],
)
def test_a_module_is_brought_by_an_extra(module: str, extra: str) -> None:
    assert extras.extra_of(module) == extra


def test_a_slip_of_our_own_is_not_explained_away() -> None:
    with pytest.raises(ModuleNotFoundError):
        extras.explained("a broker", ModuleNotFoundError("no mq.stor", name="mq.stor"))


def run_without(script: str, *extra_names: str) -> subprocess.CompletedProcess[str]:
    """In a Python that has not the packages of these extras."""
    hidden = [module for name in extra_names for module in extras.MODULES[name]]
    head = f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
    return subprocess.run(
        [sys.executable, "-c", head + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_client_needs_no_extra() -> None:
    script = (
        "import mq.client, mq.client.aio\n"
        "for one in (mq.client, mq.client.aio):\n"
        "    for name in one.__all__: getattr(one, name)\n"
    )
    done = run_without(script, *extras.MODULES)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "without", "text"),
    [
        (["topic", "list"], ("cli",), "the command line needs click"),
        (["server"], ("server",), "mq server needs"),
        (["dump", "x"], ("server",), "mq dump needs"),
        (["certs", "dev", "x"], ("server",), "mq certs needs cryptography"),
        (["console"], ("console",), "mq console needs"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(
    arguments: list[str], without: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    script = f"sys.argv = ['mq', *{arguments}]\nfrom mq.__main__ import main; main()\n"
    done = run_without(f"import os; os.chdir({str(tmp_path)!r})\n{script}", *without)
    assert done.returncode != 0
    assert text in done.stderr
    assert f"The extra {without[0]} brings it: {extras.install(without[0])}\n" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("script", "extra"),
    [
        ("from mq.client import arrow", "arrow"),
        ("from mq.testing import container", "testing"),
        ("import mq_spark; mq_spark.session()", "spark"),
        ("import mq_spark; mq_spark.sink", "spark"),
    ],
)
def test_a_program_is_told_the_extra_too(script: str, extra: str) -> None:
    done = run_without(script, extra)
    assert done.returncode != 0
    assert extras.install(extra) in done.stderr


@pytest.mark.parametrize(
    ("record", "command"),
    [
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "--editable '/a b[console]'"),
        ({"url": "file:///src/mq", "dir_info": {}}, "'/src/mq[console]'"),
        ({"url": "file:///mq-0.1.0-py3-none-any.whl"}, "'/mq-0.1.0-py3-none-any.whl[console]'"),
        (None, "'mq[console]'"),
    ],
    ids=["checkout", "directory", "wheel", "index"],
)
def test_an_extra_is_installed_from_where_mq_came(
    record: object, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "mq-0.1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: mq\nVersion: 0.1.0\n")
    if record is not None:
        (home / "direct_url.json").write_text(json.dumps(record))
    monkeypatch.syspath_prepend(tmp_path)
    assert extras.install("console") == f"{sys.executable} -m pip install {command}"
