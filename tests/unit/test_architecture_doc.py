"""docs/ARCHITECTURE.md and docs/REPLICATION.md name every module, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "mq/store": "ARCHITECTURE.md",
    "mq/broker": "ARCHITECTURE.md",
    "mq/rpc": "ARCHITECTURE.md",
    "mq/client": "ARCHITECTURE.md",
    "mq/admin": "ARCHITECTURE.md",
    "mq_spark": "ARCHITECTURE.md",
    "mq/raft": "REPLICATION.md",
}


@pytest.mark.parametrize(("package", "page"), PAGES.items(), ids=list(PAGES))
def test_the_table_of_a_package_has_every_module_once(package: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = re.split(rf"^## {package}\b.*$", text, flags=re.MULTILINE)[1]
    part = re.split(r"^## ", part, maxsplit=1, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    parent = ROOT if package.startswith("mq/") else ROOT / "spark"
    modules = [path.stem for path in (parent / package).rglob("*.py")]
    assert sorted(named) == sorted(name for name in modules if name != "__init__")
