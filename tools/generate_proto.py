"""Generates mq/wire/v1 from proto/. With --check, says whether what is committed is current.

protoc names Python modules after the path of the .proto file, `mq/v1`, which would collide with our
own package; the generated modules live in `mq/wire/v1`, so their imports of each other are
rewritten.
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
WIRE = ROOT / "mq" / "wire" / "v1"


def generate() -> dict[str, str]:
    """The generated files by name."""
    well_known = str(Path(grpc_tools.__file__).parent / "_proto")
    protos = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("mq/v1/*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}"]
        outputs = [f"--python_out={directory}", f"--pyi_out={directory}"]
        if protoc.main([*arguments, *outputs, *protos]) != 0:
            sys.exit("protoc failed, see above")
        return {
            path.name: path.read_text().replace("from mq.v1 import", "from mq.wire.v1 import")
            for path in sorted(Path(directory).rglob("*.py*"))
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, exit 1 on a difference")
    check = parser.parse_args().check
    generated = generate()
    committed = {path.name: path.read_text() for path in WIRE.glob("*_pb2*")}
    if check:
        if generated != committed:
            sys.exit(
                "mq/wire/v1 is not what proto/ generates: run `make proto` and commit the result"
            )
        print(f"mq/wire/v1 is current ({len(generated)} files)")
        return
    for name in committed.keys() - generated.keys():
        (WIRE / name).unlink()
    for name, text in generated.items():
        (WIRE / name).write_text(text)
    print(f"wrote {len(generated)} files to mq/wire/v1")


if __name__ == "__main__":
    main()
