"""One Chromium for the tests of a process, and pages that tell of errors and requests elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: containers have none to give. Nothing that calls home by itself.
_FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


# A file at a time: while it lasts, Playwright runs an event loop on this thread, and no test that
# needs one of its own could follow.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium: `apt-get install chromium` brings one")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        try:
            started = running.chromium.launch(executable_path=found, args=list(_FLAGS))
        except playwright.Error as error:
            pytest.skip(f"{found} does not start here: {str(error).splitlines()[0]}")
        yield started
        started.close()


class WatchedPage:
    """A page of a console, with what went wrong on it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.troubles: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:")):
            self.troubles.append(f"a request to {request.url}")

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.url + path)
        self.page.wait_for_load_state("load")
        return answer

    def follow(self, target: Any) -> None:
        """Clicks what leads to another page, a selector or a locator; returns when that page is
        whole, with its scripts: `count()` and the like wait for nothing.
        """
        with self.page.expect_navigation(wait_until="load"):
            self.page.click(target) if isinstance(target, str) else target.click()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., WatchedPage]]:
    """Makes pages, each as a browser of its own: cookies are not shared."""
    contexts: list[Any] = []

    def make(url: str, *, width: int = 1280, theme: str = "light", zone: str = "Asia/Tokyo") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, timezone_id=zone
        )
        context.set_default_timeout(30_000)
        contexts.append(context)
        return WatchedPage(context.new_page(), url)

    yield make
    for context in contexts:
        context.close()
