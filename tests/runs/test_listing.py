import math
from pathlib import Path

from roundoff.runs import Finding, Run, RunSummary, Severity, UnreadableRun, list_runs
from tests.run_folders import losses, write_run

OVERFLOW = Finding(rule="overflow", severity=Severity.ERROR, confidence=0.9, title="t", why="w", fix="f", step=1)


def write(folder: Path, *, started: str, num_steps: int = 0) -> Run:
    return write_run(folder, losses(*(1.0 / (step + 1) for step in range(num_steps))), started=started, recipe="O2")


def test_runs_are_listed_by_age_and_unreadable_ones_last(tmp_path: Path):
    write(tmp_path / "b", started="2026-01-01", num_steps=4).write_findings([OVERFLOW])
    write(tmp_path / "a", started="2026-01-02")
    write(tmp_path / "0", started="2025-01-01")
    (tmp_path / "0" / "run.json").write_text("{")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "notes.txt").touch()
    first, second, third = list_runs(tmp_path)
    assert first == RunSummary(
        path=tmp_path / "b",
        started="2026-01-01",
        status="finished",
        recipe="O2",
        num_steps=4,
        last_loss=0.25,
        findings=(OVERFLOW,),
    )
    assert (second.path.name, second.num_steps, second.last_loss, second.findings) == ("a", 0, None, None)
    assert isinstance(third, UnreadableRun)
    assert "0/run.json' cannot be read" in third.problem


def test_a_run_is_listed_alone(tmp_path: Path):
    write(tmp_path / "a", started="2026-01-01", num_steps=1)
    (summary,) = list_runs(tmp_path / "a")
    assert summary.num_steps == 1


def test_a_missing_folder_has_no_runs(tmp_path: Path):
    assert list_runs(tmp_path / "missing") == []


def test_a_run_that_is_being_written_is_listed_without_its_half_line(tmp_path: Path):
    run = write(tmp_path / "a", started="2026-01-01", num_steps=2)
    with (run.path / "metrics-rank0.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    (summary,) = list_runs(tmp_path)
    assert (summary.num_steps, summary.last_loss) == (2, 0.5)


def test_a_loss_that_is_nan_is_listed_as_it_is(tmp_path: Path):
    write_run(tmp_path / "a", losses(math.nan))
    (summary,) = list_runs(tmp_path)
    assert math.isnan(summary.last_loss)
    assert summary.to_object()["path"] == str(tmp_path / "a")
