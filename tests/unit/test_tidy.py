"""The tidy rules of the repository, kept by tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
GENERATED = ROOT / "mq" / "wire" / "v1"
# Written in two parts, so that this file does not break its own rule.
MACHINE_PATHS = re.compile("/(?:root|home|Users)/")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if GENERATED not in path.parents)


def tree(path: Path) -> ast.Module:
    """Parsed for each rule: a thousand trees that are kept slow the whole process down."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def check(paths: list[Path], rule: Callable[[Path], Iterable[object]]) -> None:
    """Names every place that breaks the rule."""
    broken = [f"{path.relative_to(ROOT)}: {what}" for path in paths for what in rule(path)]
    assert not broken, "\n".join(broken)


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


ALL = python_files("mq", "tests", "bench", "tools", "spark")
PACKAGE = python_files("mq")
STORE = python_files("mq/store")
TESTS = python_files("tests")


def test_there_is_something_to_check() -> None:
    assert all((ALL, PACKAGE, STORE, TESTS))
    assert Path(__file__).resolve() in ALL


def functions_too_long(path: Path) -> Iterator[str]:
    for one in functions(path):
        lines = (one.end_lineno or 0) - one.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{one.name}: {lines} lines"


def test_a_function_fits_on_a_screen() -> None:
    check(ALL, functions_too_long)


def modules_without_docstring(path: Path) -> Iterator[str]:
    if not ast.get_docstring(tree(path)):
        yield "no docstring"


def test_a_module_says_what_it_owns() -> None:
    check(PACKAGE, modules_without_docstring)


def bare_offsets(path: Path) -> Iterator[int]:
    """Lines that declare something public of the name `offset`: parameters, attributes, functions.

    A local variable next to the call that fills it may be called so.
    """
    for node in ast.walk(tree(path)):
        match node:
            case ast.arg(arg="offset") | ast.Attribute(attr="offset"):
                yield node.lineno
            case ast.FunctionDef(name="offset") | ast.AsyncFunctionDef(name="offset"):
                yield node.lineno
            case ast.ClassDef(body=body):
                yield from (
                    one.lineno
                    for one in body
                    if isinstance(one, ast.AnnAssign | ast.Assign)
                    and "offset"
                    in {name.id for name in ast.walk(one) if isinstance(name, ast.Name)}
                )


def test_an_offset_says_into_what() -> None:
    check(STORE, bare_offsets)


# Modules that answer differently each time they are asked.
UNSTEADY = {"time", "datetime", "random", "secrets", "uuid"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module.split(".")[0]
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"):
                yield "random"
            case ast.Attribute(value=ast.Name(id="os"), attr="urandom" | "getrandom"):
                yield "random"


def unsteady(path: Path) -> Iterator[str]:
    yield from UNSTEADY.intersection(imported(path))
    if "mq.clock" in path.read_text(encoding="utf-8"):
        yield "mq.clock"


def test_the_store_uses_no_clock_and_no_randomness() -> None:
    check(STORE, unsteady)


def runs_without_deadline(path: Path) -> Iterator[int]:
    if "subprocess.run" not in path.read_text(encoding="utf-8"):
        return
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="subprocess"), attr="run"), keywords=keywords
            ):
                if "timeout" not in {keyword.arg for keyword in keywords}:
                    yield node.lineno


def test_a_program_that_a_test_runs_has_a_deadline() -> None:
    check(TESTS, runs_without_deadline)


def texts() -> Iterator[Path]:
    """Every text file that is or could be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=120,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes()[:8000]:
            yield path


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: no list of its files")
def test_no_text_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


def test_declared_dependencies_are_the_imported_ones() -> None:
    """Development tools install packages that a user does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_the_package = ("arrow", "cli", "console", "otel", "server", "testing")
    dependencies = [
        *project["dependencies"],
        *(one for extra in of_the_package for one in extras[extra]),
    ]
    names = [re.match(r"(?!mq\[)[A-Za-z0-9-]+", each) for each in dependencies]
    # Packages that are imported by another name than they are installed by.
    modules = {
        "protobuf": "google",
        "grpcio": "grpc",
        "grpcio-health-checking": "grpc_health",
        "grpcio-reflection": "grpc_reflection",
        "opentelemetry-api": "opentelemetry",
    }
    declared = {modules.get(name[0], name[0].replace("-", "_")) for name in names if name}
    imported = {
        name.split(".")[0]
        for path in PACKAGE
        for node in ast.walk(tree(path))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    # `_sha256` is of Python 3.11; later ones have no such module, and the code does without.
    assert imported - sys.stdlib_module_names - {"mq", "_sha256"} == declared
