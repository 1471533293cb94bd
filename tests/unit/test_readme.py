"""Links of the README and the docs lead somewhere, and their quotes are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"])
COLUMNS_MAX = 130


def ids(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_lines_of_the_readme_fit_a_page() -> None:
    long = [line for line in README.splitlines() if len(line) > COLUMNS_MAX]
    assert long == []


def test_every_target_of_make_that_is_named_exists() -> None:
    makefiles = [ROOT / "Makefile", ROOT / "examples" / "go" / "Makefile"]
    rules = "".join(path.read_text(encoding="utf-8") for path in makefiles)
    targets = set(re.findall(r"^([a-z-]+):", rules, re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        # Where it is code: at the start of an indented line, or in back-quotes.
        named = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, page.name


@pytest.mark.parametrize(
    ("language", "source"), [("js", "node/send.js"), ("go", "go/send/main.go")]
)
def test_code_quoted_in_the_readme_stands_in_the_example(language: str, source: str) -> None:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    example = (ROOT / "examples" / source).read_text(encoding="utf-8")
    lines = [line.strip() for line in example.splitlines()]
    at = 0
    for line in filter(None, map(str.strip, found[1].splitlines())):
        # In the same order; the README leaves out what is around them.
        at = lines.index(line, at) + 1
