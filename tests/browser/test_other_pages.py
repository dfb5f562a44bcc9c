"""The pages of comparisons and sweeps in a browser: they open, and their tables sort and filter."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.diagnose.against import findings_against
from roundoff.report.comparisons.compared_runs import ComparedRuns
from roundoff.report.parts import Cell, TableColumn
from roundoff.report.sweep_page import SweepPage, SweepPageRow, sweep_page
from tests.browser.conftest import OpenTab
from tests.report.sample_runs import record_run


def test_the_page_of_a_comparison_opens_and_its_table_sorts(tmp_path: Path, open_tab: OpenTab) -> None:
    ours, theirs = record_run(tmp_path / "a", is_broken=False), record_run(tmp_path / "b", is_broken=False, eps=0.1)
    comparison = compare_runs(ours, theirs)
    (finding,) = findings_against(comparison)
    (tmp_path / "page.html").write_text(
        ComparedRuns(comparison=comparison, finding=finding, reference="<a>", candidate="b").page()
    )
    page = open_tab(tmp_path / "page.html").page
    expect(page.locator("h1")).to_have_text("b against <a>")
    expect(page.locator("tr.bad").first).to_contain_text("stem.0")
    page.locator("th button", has_text="excess").click()
    expect(page.locator("th", has_text="excess")).to_have_attribute("aria-sort", "descending")


def test_the_page_of_a_sweep_opens_and_its_table_filters(tmp_path: Path, open_tab: OpenTab) -> None:
    rows = [
        SweepPageRow(cells=[Cell(shown=name, value=name)], outcome="trained", losses=[2.0, 1.0])
        for name in ("fp32", "O2", "<i>mine</i>")
    ]
    sweep = SweepPage(
        title="A sweep",
        description="",
        summary="3 rows.",
        columns=[TableColumn(name="recipe")],
        rows=rows,
        common={},
        defaults={},
    )
    (tmp_path / "page.html").write_text(sweep_page(sweep))
    page = open_tab(tmp_path / "page.html").page
    page.locator(".filter input").fill("mine")
    expect(page.locator("tbody tr:visible")).to_have_count(1)
    expect(page.locator("tbody tr:visible")).to_contain_text("<i>mine</i>")
