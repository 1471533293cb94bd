"""The files of one broker, as a rotting disk changes them: `rot_disk.py DATA VERB < JSON > JSON`.

    files    {file: bytes}, below the data directory
    read     [[file, position, length], ...]    the bytes there, in hex
    flip     [[file, position, bit], ...]       the bytes as they were, in hex
    cut      [[file, bytes], ...]               files that end there from now on
    remove   [file, ...]

A script that needs only the standard library, so that it also runs in the image of a broker. The
broker may be running: a flip changes one byte and no time-stamp but that of a write.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def files(data: Path, _: Any) -> dict[str, int]:
    found = {}
    for path in sorted(data.rglob("*")):
        try:
            if path.is_file():
                found[str(path.relative_to(data))] = path.stat().st_size
        except FileNotFoundError:  # replaced just now
            continue
    return found


def read(data: Path, places: list[tuple[str, int, int]]) -> list[str]:
    found = []
    for file, position, length in places:
        with (data / file).open("rb") as opened:
            opened.seek(position)
            found.append(opened.read(length).hex())
    return found


def flip(data: Path, places: list[tuple[str, int, int]]) -> list[str]:
    found = []
    for file, position, bit in places:
        descriptor = os.open(data / file, os.O_RDWR)
        try:
            byte = os.pread(descriptor, 1, position)
            os.pwrite(descriptor, bytes([byte[0] ^ (1 << bit)]), position)
        finally:
            os.close(descriptor)
        found.append(byte.hex())
    return found


def cut(data: Path, ends: list[tuple[str, int]]) -> None:
    for file, size in ends:
        os.truncate(data / file, size)


def remove(data: Path, names: list[str]) -> None:
    for file in names:
        (data / file).unlink()


VERBS: dict[str, Callable[[Path, Any], Any]] = {
    "files": files,
    "read": read,
    "flip": flip,
    "cut": cut,
    "remove": remove,
}


if __name__ == "__main__":
    json.dump(VERBS[sys.argv[2]](Path(sys.argv[1]), json.load(sys.stdin)), sys.stdout)
