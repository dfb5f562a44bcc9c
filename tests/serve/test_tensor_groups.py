"""Where a run holds whole tensors, by what is in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from roundoff.runs import Run
from roundoff.runs.files.folder import (
    batch_path,
    origin_tensors_path,
    replay_batch_path,
    replay_path,
    state_path,
    tensors_path,
)
from roundoff.serve.http import Refusal
from roundoff.serve.saved_tensors import TensorGroup, open_group, tensor_groups
from tests.report.sample_runs import write_metrics_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with tensors of every kind, of step 7, where there is a step, and of rank 1 in one place."""
    run = write_metrics_run(tmp_path / "run", [1.0])
    replay = replay_path(run.path, step=7)
    write_metrics_run(replay, [1.0])
    paths = (
        tensors_path(run.path, rank=1, step=7),
        origin_tensors_path(replay, rank=0),
        replay_batch_path(replay, rank=0),
        state_path(replay, rank=0),
        batch_path(run.path, rank=0, index=2),
    )
    for nth, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        save_file({"x": torch.full((2,), float(nth))}, path)
    return run


def test_every_kind_is_found_named_and_opened(run: Run) -> None:
    found = {group.title: open_group(run, group)["x"].tolist() for group in tensor_groups(run)}
    assert found == {
        "step 7, rank 1": [0.0, 0.0],
        "the bad op of step 7": [1.0, 1.0],
        "the inputs of step 7": [2.0, 2.0],
        "the state before step 7": [3.0, 3.0],
        "batch 2": [4.0, 4.0],
    }


def test_what_is_not_there_is_refused_with_what_is(run: Run) -> None:
    with pytest.raises(Refusal, match="no whole tensors for step 8") as refused:
        open_group(run, TensorGroup(of="step", step=8, rank=0))
    assert refused.value.status == 404
    assert refused.value.why is not None
    assert refused.value.why.startswith("the run contains: step 7, rank 1, the bad op of step 7,")


def test_a_run_without_any_has_none(tmp_path: Path) -> None:
    assert tensor_groups(write_metrics_run(tmp_path / "run", [1.0])) == []
