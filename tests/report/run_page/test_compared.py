from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.diagnosis import RunView, view_run
from roundoff.report.comparisons.compared_runs import DIVERGENCE
from roundoff.report.run_page import against_reference as room
from roundoff.report.run_page.against_reference import compared_section
from roundoff.report.run_page.section import Section
from tests.report.sample_runs import record_run, write_metrics_run


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    folder = tmp_path_factory.mktemp("compared")
    reference = record_run(folder / "reference", is_broken=False)
    return view_run(record_run(folder / "candidate", is_broken=False, eps=0.1), against=reference)


@pytest.fixture(scope="module")
def section(view: RunView) -> Section:
    found = compared_section(view)
    assert found is not None
    return found


def traces(section: Section) -> dict[str, Any]:
    figure: Any = section.data["compared"]
    return {trace["name"]: trace for trace in figure["data"]}


def test_the_first_divergence_is_marked_in_the_chart_and_in_the_table(view: RunView, section: Section):
    figure: Any = section.data["compared"]
    (note,) = figure["layout"]["annotations"]
    assert view.comparison is not None
    row = view.comparison.rows[note["x"]]
    assert (row.site, row.op) == ("stem.0", "aten.native_layer_norm#0")
    assert section.body.count(f'id="{DIVERGENCE}"') == 1
    assert section.body.count('<tr class="bad"') >= 1


def test_one_can_jump_to_it(section: Section):
    assert f'href="#{DIVERGENCE}"' in section.body


def test_introduced_and_inherited_errors_are_distinguished(view: RunView, section: Section):
    found = traces(section)
    assert "stem.0 / aten.native_layer_norm#0" in found["introduced here"]["text"][0]
    assert found["introduced here"]["x"][0] < min(found["explained by the formats"]["x"])
    assert found["inherited from the inputs"]["mode"] == "lines"


def test_the_two_are_shown_side_by_side(section: Section):
    assert "<dt>reference</dt>" in section.body
    assert "<dt>candidate</dt>" in section.body


def test_too_many_results_are_thinned_and_the_divergence_stays(view: RunView, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_POINTS", 6)
    thinned = compared_section(view)
    assert thinned is not None
    assert "differing results are not drawn" in thinned.thinned[0]
    figure: Any = thinned.data["compared"]
    assert len(figure["layout"]["annotations"]) == 1


def test_runs_that_agree_say_so(tmp_path: Path):
    reference, candidate = (record_run(tmp_path / name, is_broken=False) for name in "ab")
    found = compared_section(view_run(candidate, against=reference))
    assert found is not None
    assert "The runs are identical bit for bit" in found.body
    assert "Jump" not in found.body
    assert found.data == {}


def test_without_a_reference_there_is_no_section(tmp_path: Path):
    assert compared_section(view_run(write_metrics_run(tmp_path / "run", [1.0]))) is None


def test_the_table_has_both_sides_of_a_result(view: RunView, section: Section):
    assert view.comparison is not None
    row = next(row for row in view.comparison.rows if not row.is_equal and row.op == "aten.native_layer_norm#0")
    assert view.reference is not None
    events = {}
    for name, run in (("reference", view.reference), ("candidate", view.run)):
        seen = run.iter_events(step=row.step, site=row.site, op=row.op, phase=row.phase)
        events[name] = next(event for event in seen if event.output == row.output)
    assert row.reference_absmax == events["reference"].absmax != events["candidate"].absmax == row.candidate_absmax
    cells = f">{row.reference_absmax:.4g}</td>", f">{row.candidate_absmax:.4g}</td>", '<td data-value="fp32">fp32</td>'
    line = next(line for line in section.body.split("<tr") if f'id="{DIVERGENCE}"' in line)
    assert all(cell in line for cell in cells)


def test_a_long_table_is_folded(view: RunView, section: Section, monkeypatch: pytest.MonkeyPatch):
    assert view.comparison is not None
    monkeypatch.setattr(room, "UNFOLDED_ROWS", len(view.comparison.rows))
    assert 'class="folded"' not in compared_section(view).body
    monkeypatch.setattr(room, "UNFOLDED_ROWS", len(view.comparison.rows) - 1)
    assert f'class="folded"><summary>All {len(view.comparison.rows)} results' in compared_section(view).body
