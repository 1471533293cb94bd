"""The web console of a node: a process of its own, started with the node and started again when it
ends.

The broker never waits for it. A console that keeps ending is tried ever more seldom; one that says
that it cannot run as it is configured is not tried again. It ends with its node, also when the node
is killed: its stdin is a pipe that the kernel closes then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence

from mq.logging import get_logger

log = get_logger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
# One that ran for so long is started again at once.
_STEADY_S = 60.0
_STOP_S = 5.0
# What the command line ends with when the configuration, or an extra, is not as it must be.
_ILLEGAL_CONFIG = 2


class ConsoleProcess:
    """`run` until it is cancelled: the process has ended then."""

    def __init__(
        self,
        servers: str,
        host: str,
        port: int,
        *,
        is_open: bool,
        environment: Mapping[str, str],
    ) -> None:
        """`environment`: variables by which clients of this broker speak TLS."""
        self._arguments: Sequence[str] = [
            *("-m", "mq", "console", "--server", servers, "--host", host, "--port", str(port)),
            *(("--open",) if is_open else ()),
            "--with-parent",
        ]
        self._environment = {**os.environ, **environment}

    async def run(self) -> None:
        wait_s = _FIRST_WAIT_S
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            status, said = await self._run_once()
            if status == _ILLEGAL_CONFIG:
                log.warning("there is no console", reason=said)
                return
            if loop.time() - began_s >= _STEADY_S:
                wait_s = _FIRST_WAIT_S
            log.warning(
                "the console has ended and is started again",
                status=status,
                said=said,
                after_s=wait_s,
            )
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)

    async def _run_once(self) -> tuple[int, str]:
        """Its exit status, and the last line that it wrote."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C is for the node, which ends it.
                start_new_session=True,
            )
        except OSError as error:
            return -1, error.strerror or str(error)
        said = ""
        try:
            assert process.stdout is not None  # noqa: S101 - as asked for
            async for line in _lines(process.stdout):
                said = line
                log.info("console", line=line)
            return await process.wait(), said
        finally:
            await _end(process)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue  # longer than the buffer: left out
        if not line:
            return
        yield line.decode(errors="replace").rstrip()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), _STOP_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
