"""Files of others are what npm has, byte for byte, and come with their licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

import mq.console

VENDOR = Path(mq.console.__file__).parent / "static" / "vendor"


def test_vendored_files_are_those_of_the_list() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name not in ("SHA256SUMS", "README.md")
    }
    assert found == listed
    assert {"LICENSE.htmx", "LICENSE.uPlot"} <= found.keys()
