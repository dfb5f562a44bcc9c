"""The page of a run in a browser: what it shows first, and that sorting, filtering, choosing and jumping work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from roundoff.diagnose.diagnosis import view_run
from roundoff.report.run_page.document import run_page
from roundoff.runs import Run
from tests.browser.conftest import OpenTab, Tab
from tests.report.sample_runs import BAD_STEP, HOSTILE, diagnosed, record_run, write_metrics_run


def write_page(run: Run, *, against: Run | None = None) -> Path:
    path = run.path / "report.html"
    path.write_text(run_page(view_run(run, against=against)).html)
    return path


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(diagnosed(record_run(tmp_path_factory.mktemp("broken") / "run")))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    reference = record_run(folder / "reference", is_broken=False)
    return write_page(record_run(folder / "candidate", is_broken=False, eps=0.1), against=reference)


@pytest.fixture(scope="module")
def shared(broken: Path, open_shared_tab: OpenTab) -> Tab:
    return open_shared_tab(broken)


@pytest.fixture
def tab(shared: Tab) -> Tab:
    """The page of the broken run as it is when it has just been opened."""
    shared.page.locator("#step-choice").select_option(str(BAD_STEP))
    for box in shared.page.locator("input[type=search]:visible").all():
        box.fill("")
    shared.page.evaluate("() => scrollTo(0, 0)")
    return shared


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.page


@pytest.fixture(scope="module")
def comparison(compared: Path, open_shared_tab: OpenTab) -> Tab:
    return open_shared_tab(compared)


def texts(page: Page, column: int) -> list[str]:
    """Return a column of the table of results."""
    return page.locator(f"#step-table tbody td:nth-child({column})").all_inner_texts()


def test_the_verdict_is_the_first_thing_one_sees(page: Page) -> None:
    expect(page.locator("#verdict .finding").first).to_contain_text("fp16 matmul overflowed")
    expect(page.locator("#verdict .finding .fix").first).to_be_in_viewport()
    expect(page.locator("#verdict")).to_contain_text("body / aten.bmm#0")


def test_lists_and_tables_work_before_the_charts_are_drawn(broken: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.add_init_script("""addEventListener("DOMContentLoaded", () => {
        globalThis.early = [typeof Plotly, document.querySelectorAll("#step-table tbody tr").length];
    });""")
    page.goto(broken.as_uri())
    expect(page.locator("[data-chart=loss] .main-svg").first).to_be_visible()
    kind, num_rows = page.evaluate("early")
    assert kind == "undefined"
    assert num_rows > 0
    page.close()


def test_every_chart_is_drawn_when_one_comes_to_it(tab: Tab) -> None:
    for chart in ("[data-chart=loss]", "[data-chart=rate]", "#step-chart", "#step-flow"):
        tab.drawn(chart)
    assert tab.page.locator("[data-chart]:not(.js-plotly-plot)").count() == 0


def test_no_chart_offers_to_send_its_data_away(tab: Tab) -> None:
    tab.drawn("[data-chart=loss]")
    buttons = tab.page.locator(".modebar-btn")
    titles = [buttons.nth(number).get_attribute("data-title") or "" for number in range(buttons.count())]
    assert "Download plot as a PNG" in " ".join(titles)
    assert not [title for title in titles if re.search("cloud|studio|upload|share|edit", title, re.IGNORECASE)]


def test_the_origin_is_marked_in_the_charts_and_in_the_table(tab: Tab) -> None:
    tab.drawn("#step-chart")
    expect(tab.page.locator("#step-chart .annotation-text").first).to_have_text("origin: body / aten.bmm#0")
    expect(tab.page.locator("#step-words")).to_contain_text("Bad values begin at body / aten.bmm#0 and reach")
    marked = tab.page.locator("#step-table tr.bad")
    expect(marked).to_have_count(1)
    expect(marked).to_contain_text("aten.bmm#0")
    expect(marked).to_contain_text("origin")
    assert tab.page.locator("#step-table tr.tainted").count() > 5


def test_a_finding_leads_to_its_step_and_op(page: Page) -> None:
    page.locator("#step-choice").select_option("0")
    expect(page.locator("#step-origin")).to_be_hidden()
    page.get_by_role("button", name=f"show the ops of step {BAD_STEP}").first.click()
    expect(page.locator("#step-choice")).to_have_value("1")
    row = page.locator("#step-table tr.chosen")
    expect(row).to_be_in_viewport()
    expect(row).to_be_focused()
    expect(row).to_contain_text("aten.bmm#0")


def test_another_step_can_be_chosen(page: Page) -> None:
    page.locator("#step-choice").select_option(label="step 0")
    expect(page.locator("#step-table tr.bad")).to_have_count(0)
    expect(page.locator("#step-flow-figure")).to_be_hidden()
    expect(page.locator("#step-words")).to_have_text(f"{len(texts(page, 1))} results.")


def test_results_are_filtered_by_every_word(page: Page) -> None:
    before = len(texts(page, 1))
    box = page.locator("#step-table input")
    box.fill("backward body")
    assert set(texts(page, 2)) == {"backward"}
    assert set(texts(page, 3)) == {"body"}
    expect(page.locator("#step-table output")).to_have_text(f"{len(texts(page, 1))} of {before} results")
    box.press("Escape")
    assert len(texts(page, 1)) == before


def test_jumping_to_the_origin_undoes_a_filter_that_hides_it(page: Page) -> None:
    page.locator("#step-table input").fill("optimizer")
    expect(page.locator("#step-table tr.bad")).to_have_count(0)
    page.get_by_role("button", name="Jump to the origin").click()
    expect(page.locator("#step-table tr.chosen.bad")).to_be_in_viewport()


def test_results_are_sorted_by_their_headings_by_mouse_and_by_key(page: Page) -> None:
    heading = page.locator("#step-table th button", has_text="absmax")
    heading.click()
    column = page.locator("#step-table th").all_inner_texts().index("absmax") + 1
    largest_first = [float(text) for text in texts(page, column) if text]
    assert largest_first == sorted(largest_first, reverse=True)
    expect(page.locator("#step-table th", has_text="absmax")).to_have_attribute("aria-sort", "descending")
    expect(heading).to_be_focused()
    page.keyboard.press("Enter")
    smallest_first = [float(text) for text in texts(page, column) if text]
    assert smallest_first == sorted(smallest_first)
    assert smallest_first[0] < smallest_first[-1]


def test_a_click_on_a_point_shows_its_row(tab: Tab) -> None:
    tab.drawn("#step-chart")
    row = tab.page.evaluate(
        """() => {
            const place = document.getElementById("step-chart");
            const trace = place.data.find((each) => each.name === "origin");
            place.emit("plotly_click", { points: [{ customdata: trace.customdata[0] }] });
            return trace.customdata[0];
        }"""
    )
    expect(tab.page.locator("#step-table tr.chosen")).to_have_attribute("data-row", str(row))


def test_the_limits_of_a_format_are_drawn_over_the_step(tab: Tab) -> None:
    tab.drawn("#step-chart")
    tab.page.locator("#step-limits").select_option("e4m3")
    expect(tab.page.locator("#step-chart .annotation-text", has_text="largest e4m3")).to_have_count(1)
    tab.page.locator("#step-limits").select_option("none")
    expect(tab.page.locator("#step-chart .annotation-text", has_text="largest")).to_have_count(0)


def test_sites_are_filtered_with_the_branches_that_lead_to_them(page: Page) -> None:
    page.locator(".sites input").fill("stem.1")
    shown = page.locator(".sites [data-site]:visible")
    assert [node.get_attribute("data-site") for node in shown.all()] == ["stem", "stem.1"]
    expect(page.locator(".sites output")).to_contain_text("1 of ")


def test_the_tree_unfolds_by_key(page: Page) -> None:
    branch = page.locator('.sites details[data-site="stem"]')
    branch.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(branch).not_to_have_attribute("open", "")
    page.keyboard.press("Enter")
    expect(branch).to_have_attribute("open", "")


def test_the_list_of_contents_leads_to_sections(page: Page) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Sites").click()
    expect(page.locator("#sites h2")).to_be_in_viewport()


def test_the_comparison_shows_and_finds_the_first_divergence(comparison: Tab) -> None:
    comparison.drawn("[data-chart=compared]")
    expect(comparison.page.locator("[data-chart=compared] .annotation-text")).to_have_text("first divergence")
    row = comparison.page.locator("#first-divergence")
    expect(row).to_be_hidden()  # the table is long, and folded
    comparison.page.get_by_role("link", name="Jump to the first divergence").click()
    expect(row).to_be_visible()
    comparison.page.locator("#compared .filter input").fill("optimizer")
    expect(row).to_be_hidden()
    comparison.page.get_by_role("link", name="Jump to the first divergence").click()
    expect(row).to_be_in_viewport()
    expect(row).to_contain_text("stem.0")
    expect(row).to_contain_text("aten.native_layer_norm#0")


def test_the_table_of_the_comparison_sorts_and_filters(comparison: Tab) -> None:
    page = comparison.page
    page.evaluate("document.querySelector('#compared .folded').open = true")
    page.locator("#compared th button", has_text="relative").click()
    values = [float(text) for text in page.locator("#compared tbody td:nth-child(6)").all_inner_texts() if text]
    assert values == sorted(values, reverse=True)
    page.locator("#compared .filter input").fill("backward")
    phases = page.locator("#compared tbody tr:visible td:nth-child(2)").all_inner_texts()
    assert set(phases) == {"backward"}


def test_hostile_names_stay_text(tmp_path: Path, open_tab: OpenTab) -> None:
    name = HOSTILE.replace("/", "")
    run = diagnosed(record_run(tmp_path / "<b>run<b>", name=name))
    tab = open_tab(write_page(run))
    tab.drawn("#step-chart")
    tab.drawn("#step-flow")
    assert tab.page.locator("h1").inner_text() == "<b>run<b>"
    assert tab.page.locator("main img, main b, main a[href*=script]").count() == 0
    assert any(name in text for text in texts(tab.page, 3))
    lanes = tab.page.locator("#step-flow .ytick text").all_text_contents()
    assert any(text.endswith(f"{name}.1"[-10:]) for text in lanes)


def test_a_name_that_climbs_out_of_its_folder_stays_text(tmp_path: Path, open_tab: OpenTab) -> None:
    run = write_metrics_run(tmp_path / "run", [2.0, 1.0], name="../../../etc/passwd")
    page = open_tab(write_page(run)).page
    expect(page.locator("h1")).to_have_text("../../../etc/passwd")


def test_a_run_with_nothing_recorded_has_a_page(tmp_path: Path, open_tab: OpenTab) -> None:
    page = open_tab(write_page(write_metrics_run(tmp_path / "run", [])), dark=True).page
    expect(page.locator("#verdict")).to_contain_text("Nothing was watched: no training step was seen")
    expect(page.locator("#steps")).to_contain_text("No step was recorded")


def test_charts_take_the_colours_of_the_reader_s_setting(broken: Path, open_tab: OpenTab) -> None:
    colours = []
    for dark in (False, True):
        tab = open_tab(broken, dark=dark)
        tab.drawn("[data-chart=loss]")
        colours.append(
            tab.page.evaluate("() => document.querySelector('[data-chart=loss]').layout.font.color.toLowerCase()")
        )
    assert colours == ["#1b1f24", "#e4e7eb"]


def test_what_is_out_of_view_is_drawn_before_it_is_printed(broken: Path, open_tab: OpenTab) -> None:
    page = open_tab(broken, dark=True).page
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".plot:not(.js-plotly-plot)").count() == 0
    width = page.evaluate("() => document.querySelector('#step-chart').layout.width")
    assert width < 700
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("() => document.querySelector('#step-chart').layout.width") != width
