"""`MqContainer` on testcontainers: the example project against the image, as its README says."""

from __future__ import annotations

import pytest

from tests.chaos.docker_engine import why_not
from tests.integration.test_testing import EXAMPLE, run_example
from tests.support.readme import block, shell

# The image may have to be built first.
BUILD_S = 600.0


@pytest.mark.skipif(bool(why_not()), reason="no Docker engine answers")
@pytest.mark.timeout(2 * BUILD_S)
def test_the_example_project_passes_against_the_image() -> None:
    build, test = block((EXAMPLE / "README.md").read_text(encoding="utf-8"), 1).splitlines()
    # By the command line, whose layers `docker compose build` shares: testcontainers' own builder
    # would install all packages once more.
    shell(build, EXAMPLE, BUILD_S)
    variable, _, program = test.partition(" ")
    assert program == "pytest"
    name, _, image = variable.partition("=")
    # Its container that removes those of dead processes would have to be pulled.
    printed = run_example(**{name: image}, TESTCONTAINERS_RYUK_DISABLED="true")
    assert "3 passed" in printed
