"""The client library: producers, consumers and administration, for programs without asyncio.

`mq.client.aio` has the same names for programs with it. The table of names is in `public`.
"""

from __future__ import annotations

import os

from mq.client.public import SYNC, lazily

# gRPC's own handlers of a fork crash the child now and then, and write to its stderr. Clients do
# not survive a fork anyway, see `lifecycle`. Must be set before gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Otherwise gRPC writes a line to stderr for each handshake of TLS that fails; our errors say why.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__all__ = sorted(SYNC)  # noqa: PLE0605 # __init__.pyi has them one by one
__getattr__ = lazily(__name__, SYNC)


def __dir__() -> list[str]:
    return [*globals(), *SYNC]
