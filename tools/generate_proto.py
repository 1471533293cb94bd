"""Generates mq/wire from proto/. With --check, says whether what is committed is current.

protoc names Python modules after the path of the .proto file, `mq/v1`, which would collide with our
own package; the generated modules live in `mq/wire/v1`, and those of RocketMQ's protocol in
`mq/wire/rocketmq`, so their imports of each other are rewritten.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
WIRE = ROOT / "mq" / "wire"
# The folder of .proto files, and the package of what is generated from them.
PACKAGES = {"mq/v1": "v1", "apache/rocketmq/v2": "rocketmq"}


def generate() -> dict[str, str]:
    """The generated files, by their path in mq/wire."""
    well_known = str(Path(grpc_tools.__file__).parent / "_proto")
    protos = sorted(
        str(path.relative_to(PROTO))
        for folder in PACKAGES
        for path in (PROTO / folder).glob("*.proto")
    )
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}"]
        outputs = [f"--python_out={directory}", f"--pyi_out={directory}"]
        if protoc.main([*arguments, *outputs, *protos]) != 0:
            sys.exit("protoc failed, see above")
        return {
            f"{package}/{path.name}": _rewritten(path.read_text())
            for folder, package in PACKAGES.items()
            for path in sorted((Path(directory) / folder).glob("*.py*"))
        }


def _rewritten(text: str) -> str:
    for folder, package in PACKAGES.items():
        text = text.replace(
            f"from {folder.replace('/', '.')} import", f"from mq.wire.{package} import"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, exit 1 on a difference")
    check = parser.parse_args().check
    generated = generate()
    committed = {
        f"{package}/{path.name}": path.read_text()
        for package in PACKAGES.values()
        for path in (WIRE / package).glob("*_pb2*")
    }
    if check:
        if generated != committed:
            sys.exit("mq/wire is not what proto/ generates: run `make proto` and commit the result")
        print(f"mq/wire is current ({len(generated)} files)")
        return
    for name in committed.keys() - generated.keys():
        (WIRE / name).unlink()
    for name, text in generated.items():
        (WIRE / name).write_text(text)
    print(f"wrote {len(generated)} files to mq/wire")


if __name__ == "__main__":
    main()
