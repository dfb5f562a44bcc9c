"""What a step that has ended calls for; whole runs with bad steps are in tests/watch/test_watch.py and tests/faults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.replay.investigator import Investigator, OnAnomaly, TrainingStopped
from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Anomaly, AnomalyKind, Run, RunInfo, RunWriter, perturbed_path, replay_path
from tests.replay.taped import Taped, taped


class Handled:
    """An investigator of a training of one weight, with or without a snapshot of the open step."""

    def __init__(self, folder: Path, on_anomaly: OnAnomaly = "report", *, has_snapshot: bool = True, **settings: Any):
        self.model = nn.Linear(1, 1, bias=False)
        self.num_replays = 0
        self.training = training = Training()
        training.add_model(self.model)
        self.snapshots = Snapshots(training, memory_bytes=2**20)
        if has_snapshot:
            self.snapshots.take(0)
        self.writer = RunWriter.create(folder, RunInfo())
        self.investigator = Investigator(
            self.writer,
            training=training,
            sites=Sites(),
            snapshots=self.snapshots,
            replaying=self.replaying,
            on_anomaly=on_anomaly,
            **settings,
        )

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        self.num_replays += 1
        yield

    def handle(self, *kinds: AnomalyKind, step: int = 0, name: str | None = None) -> None:
        anomalies = [Anomaly(step=step, kind=kind, phase=None, name=name) for kind in kinds]
        self.investigator.handle(StepTape(step), anomalies, is_complete=True)


def test_a_step_that_cannot_be_recorded_is_noted_with_the_reason(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", has_snapshot=False)
    handled.handle()
    handled.handle(step=2)  # which is not to be recorded
    handled.writer.close()
    assert Run.open(tmp_path / "run").info.notes == ("Step 0 could not be recorded: no snapshot leads to it.",)
    assert handled.num_replays == 0


def test_a_step_in_which_something_was_seen_is_replayed_into_a_folder_of_its_own(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run")
    handled.handle("loss")
    assert Run.open(tmp_path / "run").replayed_steps == [0]


def test_stop_ends_the_training_for_what_was_seen_but_leaves_exceptions_to_the_script(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", "stop", has_snapshot=False)
    handled.handle("exception", name="ValueError")
    with pytest.raises(TrainingStopped) as stopped:
        handled.handle("loss")
    assert stopped.value.code == 1


@pytest.mark.parametrize(("name", "num_replays"), [("ValueError", 1), ("OutOfMemoryError", 0), ("MemoryError", 0)])
def test_what_raised_is_replayed_unless_it_would_take_all_memory_again(
    tmp_path: Path, name: str, num_replays: int
) -> None:
    handled = Handled(tmp_path / "run", recorded_steps=())
    handled.handle("exception", name=name)
    assert handled.num_replays == num_replays


def test_no_more_steps_are_replayed_than_requested(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", max_replays=1)
    handled.handle("gradient")
    handled.handle("gradient")
    assert handled.num_replays == 1


def test_skip_puts_weights_and_generators_back_to_where_the_step_began(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", "skip")
    before = handled.model.weight.detach().clone()
    handled.investigator.begin()
    expected = torch.rand(3)
    with torch.no_grad():
        handled.model.weight.fill_(float("nan"))
    handled.handle("weight")
    assert torch.equal(handled.model.weight, before)
    assert torch.equal(torch.rand(3), expected)
    assert handled.investigator.num_undone == 1
    assert handled.snapshots.latest is None
    assert handled.investigator.complaint is None


def test_a_step_that_cannot_be_undone_is_complained_about_once(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", "skip", has_snapshot=False)
    handled.handle("loss", step=4)
    handled.handle("loss", step=5)
    assert handled.investigator.complaint == "step 4 could not be undone: no snapshot leads to it."
    assert handled.investigator.num_undone == 0


def test_a_single_process_makes_no_requests(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run")
    handled.investigator.request(0)
    assert not (tmp_path / "run" / "replay").exists()


def investigator_of(result: Taped, folder: Path) -> Investigator:
    """One that has nothing but the snapshot and the tapes of a taped step."""
    snapshots = Snapshots(result.training, memory_bytes=2**20)
    snapshots._ring = [result.snapshot]
    writer = RunWriter.create(folder, RunInfo())
    return Investigator(writer, training=result.training, sites=result.sites, snapshots=snapshots)


def step(model: nn.Module, scale: list[float], folder: Path) -> Taped:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    vars(model)["its_optimizer"] = optimizer  # which lives as long as the model: a tape keeps neither alive
    x = torch.ones(3, 2)

    def run() -> None:
        optimizer.zero_grad()
        (model(x).square().mean() * scale[0]).backward()
        optimizer.step()

    return taped(folder, run)


@pytest.mark.parametrize(("unfit", "why"), [(None, "no snapshot leads to it"), ("it is strange", "it is strange")])
@pytest.mark.parametrize("kinds", [(), ("loss",), ("spike",)])
def test_a_step_that_no_snapshot_leads_to_is_neither_recorded_nor_investigated_nor_undone(
    unfit: str | None, why: str, kinds: tuple[AnomalyKind, ...], tmp_path: Path
) -> None:
    handled = Handled(tmp_path / "run", "skip", has_snapshot=False, recorded_steps=(4,))
    anomalies = [Anomaly(step=4, kind=kind, phase=None) for kind in kinds]
    handled.investigator.handle(StepTape(4, why_not_replayable=unfit), anomalies, is_complete=True)
    run = Run.open(tmp_path / "run")
    assert (run.replayed_steps, run.probes(), handled.num_replays) == ([], [], 0)
    assert handled.investigator.num_undone == 0
    assert handled.writer.info.notes == (() if kinds else (f"Step 4 could not be recorded: {why}.",))


def test_a_recorded_step_has_events_and_a_perturbed_copy(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    result = step(model, [1.0], tmp_path / "taped")
    weight = model.weight.detach().clone()
    outcome = investigator_of(result, tmp_path / "run").record(result.path, is_complete=True)
    assert (outcome.first_difference, outcome.error) == (None, None)
    assert perturbed_path(tmp_path / "run", step=0).is_dir()
    assert torch.equal(model.weight, weight)


def test_a_bad_step_is_replayed_once_and_its_origin_is_caught(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    result = step(model, [float("inf")], tmp_path / "taped")
    investigator = investigator_of(result, tmp_path / "run")
    for _ in range(2):
        assert investigator.investigate(result.path, is_complete=True) == 0
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
    assert investigator_of(result, tmp_path / "run").investigate(result.path, is_complete=True) is None
    assert Run.open(tmp_path / "run").replayed_steps == []


def test_undoing_a_step_puts_the_weights_back(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    result = step(model, [1.0], tmp_path / "taped")
    assert not torch.equal(model.weight, before)
    investigator_of(result, tmp_path / "run").undo(result.path)
    assert torch.equal(model.weight, before)
