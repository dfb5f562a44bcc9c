"""What is done about a step; whole runs with bad steps are in tests/watch/test_session.py and tests/faults."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Run, RunInfo, RunWriter, perturbed_path, replay_path
from roundoff.watch.respond import Responder
from tests.replay.taped import Taped, taped

pytestmark = pytest.mark.usefixtures("only_new_objects")


def responder(result: Taped, folder: Path) -> Responder:
    """One that has nothing but the snapshot and the tapes of a taped step."""
    snapshots = Snapshots(result.training, memory_bytes=2**20)
    snapshots._ring = [result.snapshot]
    writer = RunWriter.create(folder, RunInfo())
    return Responder(writer, training=result.training, sites=result.sites, snapshots=snapshots)


def with_nothing(folder: Path) -> Responder:
    training = Training()
    snapshots = Snapshots(training, memory_bytes=2**20)
    return Responder(RunWriter.create(folder, RunInfo()), training=training, sites=Sites(), snapshots=snapshots)


def step(model: nn.Module, scale: list[float], folder: Path) -> Taped:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 2)

    def run() -> None:
        optimizer.zero_grad()
        (model(x).square().mean() * scale[0]).backward()
        optimizer.step()

    return taped(folder, run)


def test_a_step_that_no_snapshot_leads_to_is_neither_recorded_nor_investigated_nor_undone(tmp_path: Path) -> None:
    nothing, tape = with_nothing(tmp_path / "run"), StepTape(0)
    assert nothing.record(tape, is_complete=True) is None
    assert nothing.investigate(0, tape, is_complete=True) is None
    assert not nothing.undo(tape, generators=None)
    nothing.sort_spike(0, tape)
    run = Run.open(tmp_path / "run")
    assert (run.replayed_steps, run.probes()) == ([], [])


@pytest.mark.parametrize(("unfit", "why"), [(None, "no snapshot leads to it"), ("it is strange", "it is strange")])
def test_a_step_that_was_not_recorded_is_noted_with_the_reason(
    why_not_replayable: str | None, why: str, tmp_path: Path
) -> None:
    nothing = with_nothing(tmp_path / "run")
    nothing.note_missing(StepTape(4, why_not_replayable=why_not_replayable))
    assert nothing._writer.info.notes == (f"Step 4 could not be recorded: {why}.",)


def test_a_recorded_step_has_events_and_a_twin_that_was_moved_by_a_rounding(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    result = step(model, [1.0], tmp_path / "taped")
    weight = model.weight.detach().clone()
    outcome = responder(result, tmp_path / "run").record(result.tape, is_complete=True)
    assert outcome is not None
    assert (outcome.first_difference, outcome.error) == (None, None)
    assert perturbed_path(tmp_path / "run", step=0).is_dir()
    assert torch.equal(model.weight, weight)


def test_a_bad_step_is_replayed_once_and_its_origin_is_caught(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    result = step(model, [float("inf")], tmp_path / "taped")
    ours = responder(result, tmp_path / "run")
    for _ in range(2):
        assert ours.investigate(0, result.tape, is_complete=True) == 0
    replayed = Run.open(replay_path(tmp_path / "run", step=0))
    info, origin = replayed.replay_info(), replayed.origin()
    assert info is not None
    assert (info.is_identical, info.snapshot_step) == (True, 0)
    assert origin is not None
    assert origin.op.startswith("aten.mul")


def test_what_began_before_anything_that_is_known_is_not_searched_for(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    result = step(model, [1.0], tmp_path / "taped")
    assert responder(result, tmp_path / "run").investigate(0, result.tape, is_complete=True) is None
    assert Run.open(tmp_path / "run").replayed_steps == []


def test_undoing_a_step_puts_the_weights_back(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    result = step(model, [1.0], tmp_path / "taped")
    assert not torch.equal(model.weight, before)
    assert responder(result, tmp_path / "run").undo(result.tape, generators=None)
    assert torch.equal(model.weight, before)
