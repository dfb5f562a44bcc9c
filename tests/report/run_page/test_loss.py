import math
from pathlib import Path

from roundoff.diagnose.diagnosis import RunView, view_run
from roundoff.report.run_page.section import Section
from roundoff.report.run_page.training_curves import loss_section
from roundoff.runs import CachedRun
from tests.report.sample_runs import write_metrics_run


def drawn(section: Section | None) -> dict[str, dict]:
    assert section is not None
    figure = section.data["loss"]
    return {trace["name"]: trace for trace in figure["data"]}


def test_the_loss_is_drawn_and_described(tmp_path: Path):
    section = loss_section(view_run(write_metrics_run(tmp_path / "run", [3.0, 2.0, 1.0])))
    assert drawn(section)["loss"]["y"] == [3.0, 2.0, 1.0]
    assert section is not None
    assert "Loss 3 to 1 in 3 steps." in section.body


def test_a_loss_that_is_not_finite_is_marked_where_it_happened_above_the_curve(tmp_path: Path):
    traces = drawn(loss_section(view_run(write_metrics_run(tmp_path / "run", [3.0, math.nan, 1.0]))))
    assert traces["anomaly"]["x"] == [1]
    assert traces["anomaly"]["y"] == [3.1]
    assert traces["anomaly"]["text"] == ["step 1: loss"]


def test_where_no_loss_is_finite_the_crosses_are_at_the_top_and_the_axis_has_no_numbers(tmp_path: Path):
    section = loss_section(view_run(write_metrics_run(tmp_path / "run", [math.nan, math.nan])))
    assert section is not None
    assert "No finite loss in 2 steps." in section.body
    axis = section.data["loss"]["layout"]["yaxis"]
    assert (axis["range"], axis["showticklabels"]) == ([-1, 0.05], False)
    assert drawn(section)["anomaly"]["y"] == [0.0, 0.0]


def test_the_step_of_the_verdict_has_a_line_with_its_rule(tmp_path: Path):
    section = loss_section(view_run(write_metrics_run(tmp_path / "run", [3.0, 2.0, math.nan])))
    assert section is not None
    layout = section.data["loss"]["layout"]
    assert [(note["x"], note["text"]) for note in layout["annotations"]] == [(2, "loss-nonfinite")]
    assert [shape["x0"] for shape in layout["shapes"]] == [2]


def test_the_reference_is_drawn_next_to_it(tmp_path: Path):
    run, reference = (write_metrics_run(tmp_path / name, [float(nth), 1.0]) for nth, name in enumerate("ab"))
    view = RunView(run=CachedRun.of(run), findings=[], reference=CachedRun.of(reference))
    traces = drawn(loss_section(view))
    assert traces["reference"]["y"] == [1.0, 1.0]
    assert traces["candidate"]["y"] == [0.0, 1.0]


def test_a_long_run_says_that_it_was_thinned(tmp_path: Path):
    section = loss_section(RunView(run=CachedRun.of(write_metrics_run(tmp_path / "run", [1.0] * 3000)), findings=[]))
    assert section is not None
    assert list(section.thinned) == ["3000 steps are drawn as the lowest and the highest value of each interval."]


def test_without_losses_there_is_no_section(tmp_path: Path):
    assert loss_section(view_run(write_metrics_run(tmp_path / "run", []))) is None
