"""The programs of docs/MESSAGE_TYPES.md run as they stand, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import BrokerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "MESSAGE_TYPES.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
# What each prints, in order.
EXPECTED = [
    r"COMMIT set-0:\d+\n",
    r"",
    r"payments b'order 7 is paid' 2 not today\n",
    r"1 \[b'order 7 is paid'\]\n",
    r"90\n",
]
TIMEOUT_S = 60


def test_the_programs_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    assert len(PROGRAMS) == len(EXPECTED)
    with BrokerProcess(tmp_path / "data") as broker:
        for program, expected in zip(PROGRAMS, EXPECTED, strict=True):
            result = subprocess.run(
                [sys.executable, "-c", program.replace("127.0.0.1:8081", broker.address)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert result.returncode == 0, result.stderr
            assert re.fullmatch(expected, result.stdout), result.stdout
