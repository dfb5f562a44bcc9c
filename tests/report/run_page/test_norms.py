from pathlib import Path

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.run_page.training_curves import norms_section
from roundoff.runs import CachedRun, Metrics
from tests.report.sample_runs import write_metrics_run
from tests.run_folders import write_run


def test_norms_scale_skipped_steps_and_rate_have_a_chart_each(tmp_path: Path):
    section = norms_section(
        RunView(run=CachedRun.of(write_metrics_run(tmp_path / "run", [1.0, 1.0, 1.0])), findings=[])
    )
    assert section is not None
    assert {name: [trace["name"] for trace in figure["data"]] for name, figure in section.data.items()} == {
        "norms": ["gradients", "updates"],
        "scale": ["loss scale", "skipped"],
        "rate": ["learning rate"],
    }
    assert section.data["scale"]["data"][1]["x"] == [1]
    assert section.data["norms"]["layout"]["yaxis"]["type"] == "log"
    assert "1 of 3 steps were skipped." in section.body


def test_what_was_not_measured_has_no_chart(tmp_path: Path):
    run = write_run(tmp_path / "run", Metrics(step=0, loss=1.0), Metrics(step=1, loss=1.0, grad_norm=2.0))
    section = norms_section(RunView(run=CachedRun.of(run), findings=[]))
    assert section is not None
    assert list(section.data) == ["norms"]
    assert "Norms were measured in 1 of 2 steps" in section.body


def test_the_reference_is_drawn_next_to_it(tmp_path: Path):
    run, reference = (CachedRun.of(write_metrics_run(tmp_path / name, [1.0])) for name in "ab")
    section = norms_section(RunView(run=run, findings=[], reference=reference))
    assert section is not None
    names = [trace["name"] for trace in section.data["norms"]["data"]]
    assert names == ["gradients of the reference", "gradients", "updates"]


def test_without_any_there_is_no_section(tmp_path: Path):
    assert norms_section(RunView(run=CachedRun.of(write_metrics_run(tmp_path / "run", [])), findings=[])) is None
