"""The section of exponent histograms: which tensors it has, and what it says where there are none."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from roundoff.diagnose.diagnosis import RunView, view_run
from roundoff.report.run_page import exponents as rows
from roundoff.report.run_page.exponents import exponents_section
from roundoff.report.run_page.section import Section, section_html
from roundoff.runs import CachedRun, OptimizerFacts, Run, Structure
from tests.report.sample_runs import BAD_STEP, HOSTILE, diagnosed, record_run, write_metrics_run
from tests.run_folders import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return diagnosed(record_run(tmp_path_factory.mktemp("run") / "run", name=HOSTILE.replace("/", ""), histograms=True))


@pytest.fixture(scope="module")
def section(run: Run) -> Section:
    found = exponents_section(view_run(run))
    assert found is not None
    return found


def values(section: Section) -> Any:
    return section.data["exponents"]


def test_results_gradients_and_weights_of_every_step_can_be_chosen(section: Section):
    data = values(section)
    assert data["steps"] == ["step 0", "step 1"]
    assert {(each["step"], each["kind"]) for each in data["tensors"]} == {
        (step, kind) for step in (0, 1) for kind in ("output", "gradient", "weight")
    }
    heads = [each for each in data["tensors"] if data["sites"][each["site"]] == "head" and each["step"] == 0]
    assert {each["name"] for each in heads if each["kind"] == "weight"} == {"head.weight", "head.bias"}


def test_a_histogram_counts_what_is_not_zero(section: Section, run: Run):
    data = values(section)
    given = next(each for each in data["tensors"] if each["name"] == "head.weight" and each["kind"] == "weight")
    assert sum(given["counts"]) == 32
    assert given["counts"][0] > 0
    assert given["counts"][-1] > 0
    assert [len(cut) for cut in given["cuts"]] == [3] * 5


def test_the_site_of_the_verdict_is_shown_first_with_what_is_still_finite(section: Section):
    data = values(section)
    first = data["tensors"][data["first"]]
    assert (first["step"], data["sites"][first["site"]], first["name"]) == (BAD_STEP, "body", "aten.mul#0")


def test_what_a_histogram_does_not_show_is_reported(section: Section):
    data = values(section)
    bad = ("aten.bmm#0", "output", BAD_STEP)
    (origin,) = (each for each in data["tensors"] if (each["name"], each["kind"], each["step"]) == bad)
    assert origin["about"].startswith("fp16 4x3x3, largest magnitude ")
    assert origin["about"].endswith(" of 36 not finite")
    beyond = [cut[0] for cut in origin["cuts"][:4]]
    assert beyond[0] == 0
    assert min(beyond[1:]) > 0  # infinities of fp16 are beyond all that is no wider


def test_names_stay_text(section: Section):
    assert "<img" not in section_html(section)
    assert any("<img" in site for site in values(section)["sites"])


def test_what_loses_most_is_listed_first(section: Section):
    lost = [float(value) for value in re.findall(r'<td class="number" data-value="([^"]+)"', section.body)]
    assert lost, "the table has numbers"
    names = re.findall(r'<button type="button" data-tensor="(\d+)"', section.body)
    assert len(names) == len(values(section)["tensors"])
    assert section.thinned == []


def test_the_page_says_what_it_has_no_room_for(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "MAX_TENSORS", 7)
    found = exponents_section(view_run(run))
    assert found is not None
    assert len(values(found)["tensors"]) == 7
    assert {values(found)["steps"][each["step"]] for each in values(found)["tensors"]} == {f"step {BAD_STEP}"}
    assert re.fullmatch(r"\d+ tensors of the last of these steps are left out, at even intervals.", found.thinned[0])
    assert found.thinned[1] == "Histograms of 1 of 2 steps are shown, to keep the page small."


def test_a_recording_without_histograms_says_how_to_have_them(tmp_path: Path):
    found = exponents_section(view_run(diagnosed(record_run(tmp_path / "run"))))
    assert found is not None
    assert "roundoff record --histograms train.py" in found.body


def test_a_run_without_recorded_steps_has_no_section(tmp_path: Path):
    run = write_metrics_run(tmp_path / "run", [1.0])
    assert exponents_section(RunView(run=CachedRun.of(run), findings=())) is None


def test_the_bits_of_the_runs_own_fixed_point_are_taken(tmp_path: Path):
    torch.manual_seed(0)
    run = record_run(tmp_path / "run", is_broken=False, histograms=True)
    toml = "[fixed]\nactivation = {bits = 5}\n"
    write_run(tmp_path / "other", Structure(step=0, optimizers=(OptimizerFacts(name="SGD", groups=(), recipe=toml),)))
    (tmp_path / "other" / "structure-rank0.jsonl").rename(run.path / "structure-rank0.jsonl")
    found = exponents_section(RunView(run=CachedRun.of(Run.open(run.path)), findings=()))
    assert found is not None
    assert {each["fixed"]["name"] for each in values(found)["tensors"] if "fixed" in each} == {"fixed 5"}
