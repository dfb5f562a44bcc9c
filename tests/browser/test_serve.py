"""A served folder in a browser: the list, picking two, a run that goes on, tensors; no error, no other server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from roundoff.runs import Finding, Metrics, RunInfo, RunWriter, Severity
from roundoff.runs.records.info import write_info
from tests.browser.conftest import PATIENCE_MILLISECONDS
from tests.report.sample_runs import HOSTILE, diagnosed, record_run, write_metrics_run
from tests.serve.conftest import record_tensors
from tests.serve.serving import Server, serving

OpenPage = Callable[..., Page]
HOSTILE_NAME = HOSTILE.replace("/", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "runs"
    diagnosed(record_run(folder / "broken"))
    record_run(folder / "reference", is_broken=False)
    record_run(folder / "candidate", is_broken=False, eps=0.1)
    record_tensors(folder / "tensors")
    write_metrics_run(folder / HOSTILE_NAME, [2.0, 1.0], name=HOSTILE, recipe="bf16")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as server:
        yield server


@contextmanager
def opening(browser: Browser, server: Server) -> Iterator[OpenPage]:
    """Open addresses; at the end nothing may have complained, and only the server may have been requested."""
    complaints: list[str] = []
    requested: list[str] = []
    pages: list[Page] = []

    def open_page(path: str, *, dark: bool = False) -> Page:
        page = browser.new_page(viewport={"width": 1366, "height": 768}, color_scheme="dark" if dark else "light")
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requested.append(request.url))
        pages.append(page)
        page.goto(server.address + path)
        return page

    yield open_page
    for page in pages:
        page.close()
    outside = [url for url in requested if not url.startswith((f"{server.address}/", "data:", "blob:"))]
    assert (complaints, outside) == ([], [])


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[OpenPage]:
    with opening(browser, server) as open_page:
        yield open_page


def names(page: Page) -> list[str]:
    """Return the runs that the list shows, in its order."""
    return [str(row.get_attribute("data-run")) for row in page.locator("#runs tbody tr:visible").all()]


def inside(page: Page) -> FrameLocator:
    return page.frame_locator("#frames iframe:not(.below)")


def test_the_list_shows_every_run_with_its_state_loss_and_verdict(open_page: OpenPage) -> None:
    page = open_page("/")
    row = page.locator("tr[data-run=broken]")
    expect(row.locator(".state")).to_have_text("finished")
    expect(row.locator(".severity.error")).to_have_text("error")
    expect(row.locator(".found a")).to_have_text("fp16 matmul overflowed")
    expect(row.locator(".curve svg")).to_have_attribute("aria-label", re.compile("not finite in 1"))
    expect(page.locator("tr[data-run=damaged]")).to_contain_text("is not JSON")
    expect(page.locator("#count")).to_have_text("6 runs")


def test_hostile_names_stay_text_in_the_list_and_lead_to_their_run(open_page: OpenPage) -> None:
    page = open_page("/")
    link = page.get_by_role("link", name=HOSTILE_NAME)
    expect(link).to_have_text(HOSTILE_NAME)
    assert page.locator("main img, main b").count() == 0
    link.click()
    expect(inside(page).locator("h1")).to_have_text(HOSTILE)
    assert inside(page).locator("main img").count() == 0


def test_runs_are_searched_and_filtered_and_the_address_remembers(open_page: OpenPage) -> None:
    page = open_page("/")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("overflow matmul")
    assert names(page) == ["broken"]
    expect(page.locator("#count")).to_have_text("1 of 6 runs")
    page.reload()
    assert names(page) == ["broken"]
    page.locator("#search").press("Escape")
    assert len(names(page)) == 6
    page.locator("#only-findings").select_option("not diagnosed")
    assert set(names(page)) == {"reference", "candidate", "tensors", HOSTILE_NAME}
    page.locator("#only-findings").select_option("")
    page.locator("#only-state").select_option("damaged")
    assert names(page) == ["damaged"]
    page.locator("#search").fill("bf16")
    assert names(page) == []


def test_runs_are_sorted_by_mouse_and_by_key(open_page: OpenPage) -> None:
    page = open_page("/")
    heading = page.locator("#runs th button", has_text="run")
    heading.click()
    assert names(page) == [HOSTILE_NAME, "broken", "candidate", "damaged", "reference", "tensors"]
    expect(page.locator("#runs th", has_text="run")).to_have_attribute("aria-sort", "ascending")
    expect(heading).to_be_focused()
    page.keyboard.press("Enter")
    assert names(page) == ["tensors", "reference", "damaged", "candidate", "broken", HOSTILE_NAME]
    page.locator("#runs th button", has_text="findings").click()
    assert names(page)[0] == "broken"


def test_two_runs_that_are_picked_by_key_are_compared(open_page: OpenPage) -> None:
    page = open_page("/")
    compare = page.get_by_role("button", name="Compare")
    expect(compare).to_be_disabled()
    page.get_by_label("pick candidate").focus()
    page.keyboard.press("Space")
    expect(page.locator("#picked")).to_contain_text("candidate is the reference")
    page.get_by_label("pick reference").check()
    expect(page.locator("#picked")).to_have_text("reference against candidate")
    page.get_by_role("button", name="Swap").click()
    expect(page.locator("#picked")).to_have_text("candidate against reference")
    compare.click()
    page.wait_for_url("**/compare?reference=reference&candidate=candidate")
    expect(inside(page).locator("#verdict .finding").first).to_contain_text("introduces the first difference")
    page.get_by_role("link", name="swap").click()
    expect(inside(page).locator("h1")).to_have_text("reference against candidate")


def test_more_than_two_runs_are_overlaid_searched_grouped_and_smoothed(open_page: OpenPage) -> None:
    page = open_page("/")
    for name in ("reference", "candidate", HOSTILE_NAME):
        page.get_by_label(f"pick {name}").check()
    expect(page.locator("#picked")).to_have_text("3 runs to overlay")
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()
    page.get_by_role("button", name="Overlay").click()
    page.wait_for_url("**/overlay?run=reference&run=candidate&run=*")
    page.locator("#overlay .main-svg").first.wait_for()
    expect(page.locator("#overlay .scatterlayer .trace")).to_have_count(3)
    page.locator("#search").fill("bf16")
    expect(page.locator("#count")).to_have_text("1 of 3 runs")
    expect(page.locator("#shown li:visible")).to_have_text([HOSTILE_NAME])
    page.locator("#search").fill("")
    page.locator("#group").select_option("recipe")
    expect(page.locator("#overlay .legendtext")).to_have_text(["no recipe", "bf16"])
    page.locator("#smooth").fill("90")
    expect(page.locator("#overlay .scatterlayer .trace")).to_have_count(3)


def test_a_verdict_in_the_list_leads_to_the_page_of_its_run_and_back(open_page: OpenPage) -> None:
    page = open_page("/", dark=True)
    page.get_by_role("link", name="fp16 matmul overflowed").click()
    expect(inside(page).locator("#verdict .finding").first).to_be_in_viewport()
    expect(page.locator("#state")).to_have_text("finished")
    page.get_by_role("link", name="all runs").click()
    expect(page.locator("#count")).to_have_text("6 runs")


def test_tensors_are_looked_at_and_saved(open_page: OpenPage) -> None:
    page = open_page("/runs/tensors")
    page.get_by_role("link", name="tensors").click()
    page.locator(".filter input").fill("addmm output0")
    page.get_by_role("link", name="aten.addmm#0:output0").click()
    expect(page.locator("#look h2")).to_contain_text("aten.addmm#0:output0")
    expect(page.locator("#look .exponents rect")).not_to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("link", name="save as .npy").click()
    assert download.value.suggested_filename.endswith(".npy")


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[RunWriter]:
    """A run that has begun, in a folder of its own."""
    with RunWriter.create(tmp_path / "runs" / "going-on", RunInfo(command=("train.py",), recipe="O2")) as writer:
        add_steps(writer, range(3))
        yield writer


def add_steps(writer: RunWriter, steps: range) -> None:
    for step in steps:
        writer.write(Metrics(step=step, loss=2.0 - 0.1 * step, lr=0.1, grad_norm=1.0, update_norm=0.1))
    writer.flush()


def test_the_list_follows_runs_that_go_on_begin_and_vanish(
    browser: Browser, going_on: RunWriter, tmp_path: Path
) -> None:
    with serving(tmp_path / "runs") as server, opening(browser, server) as open_page:
        page = open_page("/")
        row = page.locator("tr[data-run=going-on]")
        expect(row.locator(".state")).to_have_text("running")
        page.locator("#runs th button", has_text="run").click()
        page.get_by_label("pick going-on").check()
        page.get_by_label("pick going-on").focus()
        add_steps(going_on, range(3, 9))
        expect(row.locator("td").nth(5)).to_have_text("9")
        expect(row.locator(".curve figcaption")).to_have_text("2 → 1.2")
        expect(page.get_by_label("pick going-on")).to_be_checked()
        expect(page.get_by_label("pick going-on")).to_be_focused()
        write_metrics_run(tmp_path / "runs" / "new", [1.0])
        expect(page.locator("tr[data-run=new] .state")).to_have_text("finished")
        content = (tmp_path / "runs" / "new" / "run.json").read_text()
        (tmp_path / "runs" / "new" / "run.json").write_text("{")
        expect(page.locator("tr[data-run=new]")).to_contain_text("is not JSON")
        (tmp_path / "runs" / "new" / "run.json").write_text(content)
        expect(page.locator("tr[data-run=new] .state")).to_have_text("finished")
        expect(page.get_by_label("pick new")).to_be_enabled()
        page.locator("#search").fill("going")
        (tmp_path / "runs" / "new").rename(tmp_path / "away")
        expect(page.locator("#count")).to_have_text("1 runs")


def test_the_first_run_of_a_folder_appears_by_itself(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as server, opening(browser, server) as open_page:
        page = open_page("/")
        expect(page.locator("#no-runs")).to_contain_text("roundoff run train.py")
        write_metrics_run(tmp_path / "runs" / "first", [1.0])
        expect(page.get_by_role("link", name="first")).to_be_visible()
        expect(page.locator("#no-runs")).to_be_hidden()


def test_the_page_of_a_run_that_goes_on_follows_it_and_stays_as_it_is_read(browser: Browser, tmp_path: Path) -> None:
    run = record_run(tmp_path / "runs" / "run", is_broken=False)
    write_info(run.path, replace(run.info, status="running", finished=None))
    with serving(tmp_path / "runs") as server, opening(browser, server) as open_page:
        page = open_page("/runs/run")
        expect(page.locator("#state")).to_have_text("running")
        expect(page.locator("#live")).to_contain_text("2 steps")
        inside(page).locator("#step-choice").select_option(label="step 1")
        inside(page).locator("#step-table input").fill("backward")
        inside(page).locator("#step-table th button", has_text="absmax").click()
        fold = inside(page).locator('.sites details[data-site="stem"]')
        was_open = fold.evaluate("fold => (fold.open = !fold.open)")
        inside(page).locator("#step-table input").focus()
        inside(page).locator("#step-table").evaluate("table => table.scrollIntoView()")
        before = inside(page).locator("#step-table").bounding_box()
        with (run.path / "metrics-rank0.jsonl").open("a") as file:
            file.write(Metrics(step=2, loss=0.25).to_text() + "\n")
        run.write_findings([finding("the loss fell")])  # what is above grows
        expect(page.locator("#live")).to_have_text("3 steps, loss 0.25")
        expect(inside(page).locator("#verdict")).to_contain_text("the loss fell")
        assert inside(page).locator("#step-choice").evaluate("it => it.selectedOptions[0].textContent") == "step 1"
        expect(inside(page).locator("#step-table input")).to_have_value("backward")
        expect(inside(page).locator("#step-table input")).to_be_focused()
        assert set(inside(page).locator("#step-table tbody td:nth-child(2)").all_inner_texts()) == {"backward"}
        heading = inside(page).locator("#step-table th", has_text="absmax")
        expect(heading).to_have_attribute("aria-sort", "descending")
        assert fold.evaluate("fold => fold.open") == was_open
        after = inside(page).locator("#step-table").bounding_box()
        assert before is not None
        assert after is not None
        assert abs(after["y"] - before["y"]) <= 2
        expect(page.locator("#frames iframe")).to_have_count(1)


def test_a_chart_that_is_zoomed_stays_so_until_it_is_not(browser: Browser, tmp_path: Path) -> None:
    run = write_metrics_run(tmp_path / "runs" / "run", [2.0, 1.5, 1.0])
    write_info(run.path, replace(run.info, status="running", finished=None))

    def add_steps_and_see(steps: range) -> list[float]:
        with (run.path / "metrics-rank0.jsonl").open("a") as file:
            file.writelines(Metrics(step=step, loss=0.5, lr=0.1).to_text() + "\n" for step in steps)
        expect(inside(page).locator(".facts").first).to_contain_text(f"steps{steps.stop}")
        return list(chart.evaluate("place => place.layout.xaxis.range"))

    with serving(tmp_path / "runs") as server, opening(browser, server) as open_page:
        page = open_page("/runs/run#loss")
        chart = inside(page).locator("[data-chart=loss]")
        chart.locator(".main-svg").first.wait_for()
        chart.evaluate("place => Plotly.relayout(place, {'xaxis.range': [0.5, 1.5]})")
        assert add_steps_and_see(range(3, 10)) == [0.5, 1.5]
        chart.evaluate("place => Plotly.relayout(place, {'xaxis.autorange': true})")
        assert add_steps_and_see(range(10, 30))[1] > 20


def test_findings_that_come_later_are_shown_and_updating_can_be_stopped(browser: Browser, tmp_path: Path) -> None:
    run = write_metrics_run(tmp_path / "runs" / "run", [2.0, 1.0])
    with serving(tmp_path / "runs") as server, opening(browser, server) as open_page:
        page = open_page("/runs/run")
        expect(inside(page).locator("#verdict")).to_contain_text("Nothing found.")
        run.write_findings([finding("the first")])
        expect(inside(page).locator("#verdict")).to_contain_text("the first")
        page.get_by_label("update automatically").uncheck()
        run.write_findings([finding("the second")])
        page.wait_for_timeout(2500)
        expect(inside(page).locator("#verdict")).to_contain_text("the first")
        page.get_by_label("update automatically").check()
        expect(inside(page).locator("#verdict")).to_contain_text("the second")


def finding(title: str) -> Finding:
    return Finding(
        rule="loss-spike", severity=Severity.WARNING, confidence=0.9, title=title, why="it jumped", fix="none"
    )
