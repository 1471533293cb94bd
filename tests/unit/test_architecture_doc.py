"""The walk of a message in docs/ARCHITECTURE.md leads through files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` ([^:]*):", re.MULTILINE)


def steps() -> list[tuple[str, list[str]]]:
    """File of each step, and the functions named beside it."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return [(path, re.findall(r"`([\w.]+)`", named)) for path, named in STEP.findall(text)]


def test_each_step_names_a_file_and_functions_of_it() -> None:
    missing = []
    for path, functions in steps():
        code = (ROOT / "mq" / path).read_text(encoding="utf-8")
        assert functions, path
        for name in functions:
            wanted = [rf"(def|class) {part}\b" for part in name.split(".")]
            if not all(re.search(one, code) for one in wanted):
                missing.append(f"{path}: {name}")
    assert not missing, missing


def test_no_file_is_visited_twice() -> None:
    visited = [path for path, _ in steps()]
    assert visited
    assert len(visited) == len(set(visited))
