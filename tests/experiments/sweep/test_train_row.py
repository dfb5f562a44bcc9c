from pathlib import Path

from roundoff.experiments.sweep.row_training import train_row
from roundoff.runs import Metrics
from roundoff.runs.files.lines import read_lines
from roundoff.train import TrainConfig

TINY = TrainConfig(width=4, steps=2, batch_size=16, threads=1, runs=None)


def test_every_step_leaves_its_metrics_and_an_earlier_try_leaves_none(tmp_path: Path):
    path = tmp_path / "metrics" / "k.jsonl"
    for _ in range(2):
        train_row(TINY, metrics_file=path)
    steps = list(read_lines(path, Metrics.from_object))
    assert [step.step for step in steps] == [0, 1]
    assert all(step.loss is not None and step.lr is not None for step in steps)


def test_without_a_file_nothing_is_kept():
    assert train_row(TINY)["steps"] == 2
