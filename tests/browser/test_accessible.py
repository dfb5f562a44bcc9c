"""Every kind of page under axe-core: names, roles, keyboard and contrast; and on a screen of 400 pixels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.conftest import PATIENCE_MILLISECONDS
from tests.report.sample_runs import diagnosed, record_run, write_metrics_run
from tests.serve.serving import Server, serving

PATHS = {
    "list": "/",
    "run": "/runs/broken/page",
    "frame": "/runs/broken",
    "comparison": "/compare/page?reference=good&candidate=broken",
    "overlay": "/overlay?run=good&run=broken&run=curve",
}
NARROW = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served") / "runs"
    diagnosed(record_run(folder / "broken"))
    record_run(folder / "good", is_broken=False)
    write_metrics_run(folder / "curve", [2.0, 1.0], recipe="bf16")
    with serving(folder) as server:
        yield server


def open_page(browser: Browser, address: str, *, width: int = 1280, dark: bool = False) -> Page:
    """Open a page; axe is a script that its policy does not know."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    page.goto(address)
    return page


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PATHS)
def test_axe_finds_nothing(browser: Browser, server: Server, name: str, dark: bool) -> None:
    page = open_page(browser, server.address + PATHS[name], dark=dark)
    rules = {"exclude": [[".plot"]]}  # what plotly draws has a text of its own, the label of the figure
    found = Axe().run(page, context=rules, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    assert [
        (each["id"], [node["html"][:120] for node in each["nodes"]][:3]) for each in found.response["violations"]
    ] == []
    page.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_nothing_is_cut_off_on_a_narrow_screen(browser: Browser, server: Server, name: str) -> None:
    page = open_page(browser, server.address + PATHS[name], width=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    page.context.close()
