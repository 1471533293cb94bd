"""Watches the files of certificates: connections that come after a change use the new ones.

Files are looked at every ten seconds, and at once when an operator asks for it (SIGHUP). Files that
cannot be used are logged once and change nothing: see `mq.tls`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mq.errors import IllegalConfig
from mq.logging import get_logger
from mq.tls import Certificates

log = get_logger(__name__)

PERIOD_S = 10.0


class CertificateWatch:
    """`run` it on a loop; files are read on a thread, because they may be on a slow disk."""

    def __init__(self, watched: Sequence[Certificates[Any]]) -> None:
        self._watched = watched
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """The files are read without delay, also if they look the same."""
        self._asked.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._asked.wait()
            is_asked = self._asked.is_set()
            self._asked.clear()
            for one in self._watched:
                await self._refresh(one, is_asked=is_asked)

    async def _refresh(self, certificates: Certificates[Any], *, is_asked: bool) -> None:
        listener, file = certificates.listener, certificates.files.cert
        try:
            is_new = await asyncio.to_thread(certificates.refresh, is_asked=is_asked)
        except IllegalConfig as error:
            log.warning(
                "TLS files cannot be used: those before stay in use",
                listener=listener,
                error=str(error),
            )
        except Exception:
            log.exception("TLS files are not loaded by a mistake of the broker", file=file)
        else:
            not_after = datetime.fromtimestamp(certificates.generation.leaf.not_after_s, UTC)
            if is_new:
                log.info(
                    "TLS files are loaded, for new connections",
                    listener=listener,
                    file=file,
                    not_after=not_after.isoformat(),
                )
            elif is_asked:
                log.info("TLS files are unchanged", listener=listener, file=file)
