import math
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.errors import SweepError
from roundoff.experiments.engine.process_pool import Task, TaskOutcome
from roundoff.experiments.sweep import sweep_folder as module
from roundoff.experiments.sweep.definition import Sweep, read_sweep
from roundoff.experiments.sweep.sweep_folder import run_sweep
from roundoff.experiments.sweep.sweep_rows import SweepRow, append_row, read_rows

TINY = """
[settings]
data = "digits"
width = 4
steps = 2
[axes]
recipe = ["fp32", "O2"]
batch_size = [16, 32]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Sweep:
    (tmp_path / "tiny.toml").write_text(TINY)
    return read_sweep(tmp_path / "tiny.toml")


class Trained:
    """Replaces the processes: records their tasks, and returns at once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_tasks(self, tasks: list[Task], *, jobs: int, on: str, on_result: object) -> None:
        for task in tasks:
            config = task.argument
            self.names.append(f"{config.recipe}, {config.batch_size}")
            assert callable(on_result)
            on_result(TaskOutcome(task=task, value={"top1": 0.5}))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    stand_in = Trained()
    monkeypatch.setattr(module, "run_tasks", stand_in.run_tasks)
    return stand_in


def numbers(rows: list[SweepRow]) -> list[SweepRow]:
    return [replace(row, seconds=0.0) for row in rows]


def test_results_do_not_depend_on_the_number_of_jobs(tiny: Sweep, tmp_path: Path):
    here, one, two = (run_sweep(tiny, folder=tmp_path / str(jobs), jobs=jobs) for jobs in (0, 1, 2))
    assert [row.name for row in here] == ["fp32, 16", "fp32, 32", "O2, 16", "O2, 32"]
    assert all(row.failure is None and row.steps == 2 and row.top1 is not None for row in here)
    assert numbers(here) == numbers(one) == numbers(two)


def test_rows_report_the_saved_memory_with_and_without_compression(tmp_path: Path):
    (tmp_path / "a.toml").write_text('settings = {steps = 1, width = 8}\n[axes]\nrecipe = ["fp32", "act4"]')
    plain, compressed = run_sweep(read_sweep(tmp_path / "a.toml"), folder=tmp_path / "a", jobs=0)
    assert plain.saved_activation_bytes is not None
    assert compressed.saved_activation_bytes is not None
    assert plain.saved_activation_bytes > 5 * compressed.saved_activation_bytes


def test_a_training_that_fails_is_a_row_that_says_so(tmp_path: Path):
    (tmp_path / "a.toml").write_text(
        'settings = {steps = 1, width = 4}\n[axes.data]\nhere = "digits"\ngone = "idx:/nowhere"'
    )
    good, bad = run_sweep(read_sweep(tmp_path / "a.toml"), folder=tmp_path / "a", jobs=2)
    assert good.failure is None
    assert bad.top1 is None
    assert bad.failure is not None
    assert bad.failure.startswith("DataError: ")
    assert bad.note.startswith("failed: DataError: ")


def test_a_nan_is_a_result(tmp_path: Path):
    (tmp_path / "a.toml").write_text("settings = {steps = 3, width = 4}\n[axes]\nlr = [1e30]")
    (row,) = run_sweep(read_sweep(tmp_path / "a.toml"), folder=tmp_path / "a", jobs=0)
    assert row.failure is None
    assert row.first_nonfinite_step is not None
    assert row.note.startswith("ended ")


def test_finished_rows_are_not_trained_again(tiny: Sweep, tmp_path: Path, trained: Trained):
    run_sweep(tiny.only("fp32"), folder=tmp_path / "s")
    reported: list[tuple[str, bool]] = []
    rows = run_sweep(tiny, folder=tmp_path / "s", resume=True, on_row=lambda row, new: reported.append((row.name, new)))
    assert trained.names == ["fp32, 16", "fp32, 32", "O2, 16", "O2, 32"]
    assert reported == [("fp32, 16", False), ("fp32, 32", False), ("O2, 16", True), ("O2, 32", True)]
    assert [row.name for row in rows] == ["fp32, 16", "fp32, 32", "O2, 16", "O2, 32"]


def test_changed_settings_are_trained_again(tiny: Sweep, tmp_path: Path, trained: Trained):
    run_sweep(tiny.only("fp32, 16"), folder=tmp_path / "s")
    run_sweep(tiny.only("fp32, 16").with_steps(1), folder=tmp_path / "s", resume=True)
    assert trained.names == ["fp32, 16", "fp32, 16"]


def test_failed_rows_are_trained_again(tiny: Sweep, tmp_path: Path, trained: Trained):
    (training,) = tiny.only("fp32, 16").trainings
    folder = tmp_path / "s"
    folder.mkdir()
    append_row(folder / "rows.jsonl", SweepRow(key=training.key, labels={}, settings={}, failure="killed by SIGKILL"))
    (row,) = run_sweep(tiny.only("fp32, 16"), folder=folder, resume=True)
    assert row.failure is None
    assert read_rows(folder / "rows.jsonl")[training.key].top1 == 0.5


def test_rows_before_an_interruption_are_kept(tiny: Sweep, tmp_path: Path, trained: Trained):
    def interrupt(row: SweepRow, is_new: bool) -> None:
        if row.name == "fp32, 32":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(tiny, folder=tmp_path / "s", on_row=interrupt)
    assert [row.name for row in read_rows(tmp_path / "s" / "rows.jsonl").values()] == ["fp32, 16", "fp32, 32"]


def test_a_taken_folder_is_not_touched(tiny: Sweep, tmp_path: Path, trained: Trained):
    run_sweep(tiny.only("O2"), folder=tmp_path / "s")
    with pytest.raises(SweepError) as raised:
        run_sweep(tiny, folder=tmp_path / "s")
    assert str(raised.value) == (
        f"'{tmp_path / 's'}' already holds a sweep.\n"
        "  why: it has 2 rows, 2 of the 4 requested.\n"
        "  fix: --resume trains what is missing; --name NEW starts in another folder."
    )
    assert trained.names == ["O2, 16", "O2, 32"]


def test_a_recipe_without_a_name_is_written_next_to_the_rows(tmp_path: Path, trained: Trained):
    (tmp_path / "a.toml").write_text('[axes.recipe]\nmine = { recipe = { base = "O2", loss_scale = 8.0 } }')
    sweep = read_sweep(tmp_path / "a.toml")
    run_sweep(sweep, folder=tmp_path / "s")
    (written,) = (tmp_path / "s" / "recipes").iterdir()
    assert written.read_text() == sweep.trainings[0].recipe_toml


def test_rows_survive_their_file_with_infinities(tmp_path: Path):
    row = SweepRow(
        key="k", labels={"recipe": "O2"}, settings={"lr": 0.1}, top1=0.1, eval_loss=math.inf, note="ended NaN"
    )
    append_row(tmp_path / "rows.jsonl", row)
    assert read_rows(tmp_path / "rows.jsonl") == {"k": row}
