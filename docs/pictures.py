"""Makes the pictures of docs/report.md: trains what the page trains, writes its page, and lets chromium draw it.

python docs/pictures.py [--to docs/pictures]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from roundoff.diagnose import diagnose_run
from roundoff.report.run_page import run_page
from roundoff.report.run_view import view_of
from roundoff.runs import Run

DOCS = Path(__file__).parent
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
PICTURES = {
    "verdict": ("h1", "#verdict"),
    "step": ("#steps h2", "#step-flow-figure"),
}
"""By name: the first and the last element that are on it."""
MARGIN = 16


def trained() -> Run:
    """Do what the Python block of the page says, in the current folder, and return the run that broke."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "report.md").read_text(), re.S | re.M)
    exec(compile(block, "report.md", "exec"), {"__name__": "__main__"})
    run = Run.open("runs/broken")
    run.write_findings(diagnose_run(run).findings)
    return run


def take(tab: Page, *, first: str, last: str, to: Path) -> None:
    """Write a picture of everything from one element to another."""
    tab.locator(last).scroll_into_view_if_needed()
    tab.wait_for_timeout(1000)  # charts are drawn when they come into view
    tab.evaluate("() => scrollTo(0, 0)")
    above, below = tab.locator(first).first.bounding_box(), tab.locator(last).first.bounding_box()
    assert above is not None
    assert below is not None
    top, bottom = max(0, above["y"] - MARGIN), below["y"] + below["height"] + MARGIN
    tab.screenshot(path=to, full_page=True, clip={"x": 0, "y": top, "width": 1280, "height": bottom - top})


def main() -> None:
    """Write every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=DOCS / "pictures")
    folder = parser.parse_args().to.resolve()
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        os.chdir(scratch)
        page = Path(scratch) / "report.html"
        page.write_text(run_page(view_of(trained())).html)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        tab = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        tab.goto(page.as_uri())
        for name, (first, last) in PICTURES.items():
            take(tab, first=first, last=last, to=folder / f"{name}.png")
        browser.close()
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
