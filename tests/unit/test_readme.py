"""Links of the README and the docs lead somewhere, and their quotes are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.readme import README, ROOT, fenced_blocks, indented_blocks

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"])
COLUMNS_MAX = 130
# How many blocks of code a section has, and the test that types or runs all of them.
RUN_BY = {
    "## Two commands": (1, "integration/test_make.py"),
    "### Python": (1, "integration/test_readme_commands.py"),
    "### Node.js": (2, "integration/test_examples.py"),
    "### Go": (2, "integration/test_examples.py"),
    "## The command line": (2, "integration/test_readme_commands.py"),
    "## Three nodes": (2, "integration/test_readme_commands.py"),
    "## A cluster": (1, "chaos/test_readme_cluster.py"),
    "## Spark": (3, "spark/test_tutorial.py"),
    "## Configuration": (1, "integration/test_readme_commands.py"),
}


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


def test_every_block_of_the_readme_is_run_by_a_test() -> None:
    found = {}
    for part in re.split(r"^(?=#{2,3} )", README, flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if count := len(fenced_blocks(text)) + len(indented_blocks(text)):
            found[heading] = count
    assert found == {heading: count for heading, (count, _) in RUN_BY.items()}
    for heading, (_, name) in RUN_BY.items():
        assert f'"{heading}"' in (ROOT / "tests" / name).read_text(encoding="utf-8"), heading


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
