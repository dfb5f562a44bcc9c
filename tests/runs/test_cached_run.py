"""A cached run returns what the run does, reads each file once, and cannot be changed by its callers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import (
    CachedRun,
    Call,
    EventColumns,
    Interned,
    Metrics,
    OverfitProbe,
    ParameterColumns,
    Run,
    RunInfo,
    RunWriter,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with RunWriter.create(tmp_path / "run", RunInfo()) as writer:
        for step in range(3):
            writer.write(Metrics(step=step, loss=float(step)))
            writer.write(Call(step=step, call="step"))
            writer.write_parameters(_row(step))
            writer.flush()
        writer.write(OverfitProbe(step=2, losses=(1.0, 0.5)))
    return Run.open(tmp_path / "run")


def _row(step: int) -> ParameterColumns:
    one = np.ones(1)
    return ParameterColumns(
        step=np.array([step], dtype=np.int32),
        parameter=Interned.of(["weight"]),
        site=Interned.of(["<model>"]),
        num_elements=np.array([4]),
        l2=one,
        absmax=one,
        grad_l2=one,
        grad_absmax=one,
        grad_zero_share=one,
        grad_subnormal_share=one,
        changed_fraction=one,
        update_l2=one,
    )


def test_a_kept_run_answers_as_the_run_does(run: Run) -> None:
    kept = CachedRun.of(run)
    for _ in range(2):  # from the files, then from memory
        assert kept.ranks == run.ranks == [0]
        assert kept.metrics() == run.metrics() != []
        assert kept.calls() == run.calls() != []
        assert kept.probes() == run.probes() != []
        assert kept.parameters().to_list() == run.parameters().to_list()
        assert kept.parameters(step=[0, 2], rank=0)["step"].to_list() == [0, 2]
        assert kept.hashes(step=1).num_rows == 0
        assert (kept.steps, kept.replayed_steps) == ([], [])
        assert list(kept.iter_events(step=0, rank=0)) == []


def test_what_was_read_once_is_not_read_again(run: Run) -> None:
    kept = CachedRun.of(run)
    before = kept.metrics()
    (run.path / "metrics-rank0.jsonl").unlink()
    assert kept.metrics() == before
    assert run.metrics() == []


def test_who_changes_a_list_changes_his_own(run: Run) -> None:
    kept = CachedRun.of(run)
    kept.metrics().clear()
    assert kept.metrics() == run.metrics()


def test_a_kept_run_of_a_kept_run_is_the_same(run: Run) -> None:
    kept = CachedRun.of(run)
    assert CachedRun.of(kept) is kept


def test_who_asks_for_one_step_opens_only_the_parts_that_hold_it(
    tmp_path: Path, make_events: Callable[..., EventColumns]
) -> None:
    with RunWriter.create(tmp_path / "run", RunInfo()) as writer:
        for step in range(3):
            writer.write_events(make_events(step))
            writer.flush()
    run = Run.open(tmp_path / "run")
    kept = CachedRun.of(run)
    assert kept.steps == run.steps == [0, 1, 2]
    assert kept.events(step=1).to_list() == run.events(step=1).to_list()
    assert kept.events(step=[0, 2]).to_list() == run.events(step=[0, 2]).to_list()
    assert kept.events().to_list() == run.events().to_list()
    (tmp_path / "run" / "events" / "rank0-part-00000.parquet").write_bytes(b"damaged")
    assert kept.events(step=1).num_rows == len(list(kept.iter_events(step=1, rank=0))) == 6
    with pytest.raises(RunFolderError, match="part-00000"):
        kept.events(step=0)
