"""Sections of the page of a run in a browser: exponents, data, ranks; hostile names stay text in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import Page, expect
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.diagnose.diagnosis import view_run
from roundoff.report.run_page.document import run_page
from roundoff.runs import Run
from roundoff.watch.watching import watching
from tests.browser.conftest import OpenTab, Tab
from tests.report.sample_runs import HOSTILE, diagnosed, record_run, write_ranks_run

NAME = HOSTILE.replace("/", "")


def write_page(run: Run) -> Path:
    path = run.path / "report.html"
    path.write_text(run_page(view_run(run)).html)
    return path


def watched(folder: Path) -> Run:
    """Watch a training on small pictures in a fixed order, for two epochs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.rand(20, 1, 8, 8), torch.arange(20) % 3), batch_size=10)
    with watching(to=folder):
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    return Run.open(folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, open_shared_tab: OpenTab) -> Tab:
    run = record_run(tmp_path_factory.mktemp("recorded") / "run", name=NAME, histograms=True)
    return open_shared_tab(write_page(diagnosed(run)))


@pytest.fixture
def page(recorded: Tab) -> Page:
    recorded.page.locator("#exponents .filter input").fill("")
    return recorded.page


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, open_shared_tab: OpenTab) -> Tab:
    return open_shared_tab(write_page(watched(tmp_path_factory.mktemp("watched") / "run")), dark=True)


def bars(page: Page) -> list[float]:
    """Return the shares that the chart of exponents shows."""
    shown: list[float] = page.evaluate('() => Array.from(document.getElementById("exponent-chart").data[0].y)')
    return shown


def test_the_tensor_of_the_verdict_is_shown_over_the_formats(recorded: Tab, page: Page) -> None:
    recorded.drawn("#exponent-chart")
    expect(page.locator("#exponent-words")).to_contain_text("body / aten.mul#0: fp16")
    assert sum(bars(page)) == pytest.approx(100, abs=0.1)
    lanes = page.locator("#exponent-chart .y2tick text").all_text_contents()
    assert lanes == ["fixed 8", "e4m3", "e5m2", "fp16", "bf16"]
    expect(page.locator("#exponent-cuts tbody tr")).to_have_count(5)


def test_another_tensor_is_chosen_by_key(recorded: Tab, page: Page) -> None:
    recorded.drawn("#exponent-chart")
    page.locator("#exponent-kind").focus()
    page.keyboard.press("Home")
    page.locator("#exponent-site").select_option(label="head")
    page.locator("#exponent-kind").select_option("weight")
    expect(page.locator("#exponent-words")).to_contain_text("head / head.weight")
    before = bars(page)
    page.locator("#exponent-tensor").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#exponent-words")).to_contain_text("head / head.bias")
    assert bars(page) != before


def test_a_line_of_the_table_leads_to_its_histogram(page: Page) -> None:
    page.locator("#exponents .filter input").fill("head gradient")
    button = page.locator("#exponents tbody tr:visible button").first
    name = button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#exponent-words")).to_contain_text(name)
    expect(page.locator("#exponent-kind")).to_have_value("gradient")
    expect(page.locator("#exponent-tensor")).to_be_focused()
    expect(page.locator("#exponent-view")).to_be_in_viewport()


def test_hostile_sites_are_text_in_the_chooser_and_the_table(page: Page) -> None:
    options = page.locator("#exponent-site option").all_text_contents()
    assert any(NAME in text for text in options)
    assert page.locator("#exponents img, #exponents script:not([type])").count() == 0
    assert page.locator("#exponents tbody button", has_text=NAME).count() > 0


def test_samples_are_seen_with_their_labels(data: Tab) -> None:
    pictures = data.page.locator("#data .samples img")
    expect(pictures).to_have_count(16)
    sizes = pictures.evaluate_all("(all) => all.map((each) => [each.complete, each.naturalWidth, each.naturalHeight])")
    assert sizes == [[True, 8, 8]] * 16
    labels = data.page.locator("#data .samples figcaption").all_inner_texts()
    assert labels[:8] == ["0", "1", "2", "0", "1", "2", "0", "1"]


def test_labels_ranges_and_order_are_shown(data: Tab) -> None:
    data.drawn("[data-chart=labels]")
    data.drawn("[data-chart=ranges]")
    expect(data.page.locator("#data table").last).to_contain_text("same as in the first epoch")


def test_ranks_are_a_matrix_with_hostile_names_as_text(tmp_path: Path, open_tab: OpenTab) -> None:
    run = write_ranks_run(
        tmp_path / "run",
        names=["a", HOSTILE],
        odd=lambda kind, step, rank: kind == "clipped" and rank == 2 and step >= 3,
    )
    page = open_tab(write_page(run)).page
    expect(page.locator("#ranks .agreement .odd")).to_have_text(
        f"Rank 2 differs from ranks 0, 1, 3 from step 3 on; 1 of 2 tensors differ: {HOSTILE}."
    )
    assert page.locator("#ranks img, #ranks script").count() == 0
    expect(page.locator("#ranks td.odd")).to_have_text("B")
    page.locator("#ranks .scrolling").focus()
    expect(page.locator("#ranks .scrolling")).to_be_focused()


def test_printed_tables_keep_their_headings_and_the_names_in_their_rows(page: Page) -> None:
    page.emulate_media(media="print")
    expect(page.locator("#exponents .filtered th button").first).to_be_visible()
    expect(page.locator("#exponents .filtered td button.link").first).to_be_visible()
    expect(page.locator("#exponents .controls")).not_to_be_visible()
    page.emulate_media(media="screen")
