"""Makes the pictures of docs/report.md and docs/serve.md: trains what the pages train, and lets chromium draw them.

python docs/pictures.py [--to docs/pictures]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

import torch
from playwright.sync_api import Browser, Page, sync_playwright
from torch import nn
from torch.utils.data import DataLoader

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.diagnosis import diagnose_and_save, view_run
from roundoff.report.run_page.document import run_page
from roundoff.runs import Run
from roundoff.serve.app import App
from roundoff.serve.guard import AccessPolicy
from roundoff.serve.runs_folder import RunsFolder
from roundoff.serve.server import address_of, listen, make_server
from roundoff.train import TrainConfig, train
from roundoff.train.digits import train_test
from roundoff.watch.watching import watching

DOCS = Path(__file__).parent
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
BROKEN = {
    "verdict": ("h1", "#verdict"),
    "step": ("#steps h2", "#step-flow-figure"),
}
"""Pictures of the run that broke, by name: the first and the last element that are on it."""
DIGITS = {
    "exponents": ("#exponents h2", "#exponent-cuts"),
    "data": ("#data h2", "#data .charts"),
}
"""Pictures of a healthy run on handwritten digits."""
MARGIN = 16
ALL_DRAWN = """() => [...document.querySelectorAll(".plot")].every((place) => {
  const { top, bottom, height } = place.getBoundingClientRect();
  return !height || top > innerHeight || bottom < 0 || place.querySelector(".main-svg");
})"""
"""Charts are drawn when they come into view."""


def trained() -> Run:
    """Do what the Python block of the page says, in the current folder, and return the run that broke."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "report.md").read_text(), re.S | re.M)
    script = Path("train.py").absolute()
    script.write_text(block)
    exec(compile(block, script, "exec"), {"__name__": "__main__"})
    run = Run.open("runs/broken")
    diagnose_and_save(run, code_is_at_hand=True)
    return run


def watched() -> Run:
    """Watch a short training on the digits."""
    torch.manual_seed(0)
    data, _ = train_test()
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, to="runs/digits"):
        for x, y in DataLoader(data, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    run = Run.open("runs/digits")
    run.write_findings(diagnose_run(run).findings)
    return run


def take_list(browser: Browser, *, to: Path) -> None:
    """Train the digits with two recipes more, serve all the runs, and write a picture of the list."""
    for recipe in ("fp32", "O2"):
        train(TrainConfig(recipe=recipe, epochs=1, name=recipe))
    app = App(RunsFolder(Path("runs")))
    with listen("127.0.0.1", 0) as listening:
        server = make_server(app.asgi(AccessPolicy(names=frozenset(), is_loopback=True)))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        thread.start()
        tab = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        tab.goto(address_of(listening))
        tab.get_by_label("pick good").check()
        tab.get_by_label("pick broken").check()
        take(tab, first="h1", last="#list", to=to)
        tab.close()
        server.should_exit = True
        thread.join(timeout=60)


def take_all(browser: Browser, run: Run, pictures: dict[str, tuple[str, str]], *, to: Path) -> None:
    """Write the page of a run and every picture of it."""
    page = run.path / "report.html"
    page.write_text(run_page(view_run(run)).html)
    tab = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
    tab.goto(page.resolve().as_uri())
    for name, (first, last) in pictures.items():
        take(tab, first=first, last=last, to=to / f"{name}.png")


def take(tab: Page, *, first: str, last: str, to: Path) -> None:
    """Write a picture of everything from one element to another."""
    for place in (first, last):
        tab.locator(place).first.scroll_into_view_if_needed()
        tab.wait_for_timeout(500)
        tab.wait_for_function(ALL_DRAWN, timeout=120_000)
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
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        take_all(browser, trained(), BROKEN, to=folder)
        take_all(browser, watched(), DIGITS, to=folder)
        take_list(browser, to=folder / "runs.png")
        browser.close()
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
