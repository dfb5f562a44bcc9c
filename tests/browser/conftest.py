"""The system's chromium, driven by playwright: one browser for the tests of a file, a fresh tab for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MILLISECONDS = 60_000
"""A busy machine may take long; what does not come at all fails by it."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A page that was opened, and what it complained about or requested."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def drawn(self, chart: str) -> None:
        """Scroll to a chart and wait until it is there."""
        place = self.page.locator(chart)
        place.scroll_into_view_if_needed()
        place.locator(".main-svg").first.wait_for()


OpenTab = Callable[..., Tab]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium: apt install chromium")
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def opening(browser: Browser) -> Iterator[OpenTab]:
    """Open files; at the end nothing may have complained, and only the files themselves may have been fetched."""
    opened: list[tuple[Tab, str]] = []

    def open_file(path: Path, *, dark: bool = False) -> Tab:
        page = browser.new_page(viewport={"width": 1366, "height": 768}, color_scheme="dark" if dark else "light")
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        tab = Tab(page=page)
        page.on("console", lambda message: tab.complaints.append(message.text))
        page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (tab.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: tab.requests.append(request.url))
        address = path.resolve().as_uri()
        opened.append((tab, address))
        page.goto(address)
        return tab

    yield open_file
    for tab, address in opened:
        tab.page.close()
        outside = [url for url in tab.requests if not url.startswith((address, "data:", "blob:"))]
        assert (tab.complaints, outside) == ([], [])


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Open files for one test."""
    with opening(browser) as open_file:
        yield open_file


@pytest.fixture(scope="module")
def open_shared_tab(browser: Browser) -> Iterator[OpenTab]:
    """Open files for all tests of a module: a page with plotly in it takes a second to open."""
    with opening(browser) as open_file:
        yield open_file
