"""The client library for programs with asyncio: the same names as `mq.client`, with coroutines.

A client belongs to the event loop on which it is used first. The table of names is in `public`.
"""

from __future__ import annotations

from mq.client.public import AIO, lazily

__all__ = sorted(AIO)  # noqa: PLE0605 # aio.pyi has them one by one
__getattr__ = lazily(__name__, AIO)


def __dir__() -> list[str]:
    return [*globals(), *AIO]
