"""The watch over certificates: what it reads when, and what it logs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mq import tls
from mq.admin import certificates
from mq.admin.certificates import CertificateWatch
from mq.tls import Certificates
from tests.support.certificates import Authority, Files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def watching(
    files: Files,
) -> AsyncIterator[tuple[CertificateWatch, Certificates[ssl.SSLContext]]]:
    found = Certificates("test", tls.Files(*files), lambda paths, *_: tls.server_context(paths))
    watch = CertificateWatch([found])
    task = asyncio.create_task(watch.run())
    try:
        yield watch, found
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


def test_files_are_looked_at_again_and_again(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "PERIOD_S", 0.01)
    caplog.set_level("INFO")

    async def test() -> None:
        files = authority.files()
        async with watching(files) as (_, found):
            first = found.current
            whole = authority.files()
            shutil.copy(whole.cert, files.cert)
            await until(lambda: "TLS files cannot be used" in caplog.text)
            assert found.current is first
            shutil.copy(whole.key, files.key)
            await until(lambda: found.current is not first)
            await until(lambda: "TLS files are loaded, for new connections" in caplog.text)
        assert caplog.text.count("cannot be used") == 1

    asyncio.run(test())


def test_files_are_read_at_once_when_an_operator_asks(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def test() -> None:
        files = authority.files()
        async with watching(files) as (watch, found):
            first = found.current
            watch.ask()
            await until(lambda: "TLS files are unchanged" in caplog.text)
            authority.renew(files)
            watch.ask()
            await until(lambda: found.current is not first)

    asyncio.run(test())
