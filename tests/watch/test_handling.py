"""What a step that has ended calls for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.replay.rank_consensus import ReplayRequests
from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Anomaly, AnomalyKind, Run, RunInfo, RunWriter
from roundoff.watch.handling import StepHandler, TrainingStopped
from roundoff.watch.respond import Responder
from roundoff.watch.settings import OnAnomaly, WatchSettings


class Handled:
    """A handler of a training of one weight, with or without a snapshot of the open step."""

    def __init__(self, folder: Path, on_anomaly: OnAnomaly = "report", *, has_snapshot: bool = True, **settings: int):
        self.model = nn.Linear(1, 1, bias=False)
        self.num_replays = 0
        self.training = training = Training()
        training.add_model(self.model)
        self.snapshots = Snapshots(training, memory_bytes=2**20)
        if has_snapshot:
            self.snapshots.take(0)
        self.writer = RunWriter.create(folder, RunInfo())
        self.handler = StepHandler(
            Responder(self.writer, training=training, sites=Sites(), snapshots=self.snapshots),
            WatchSettings(on_anomaly=on_anomaly, **settings),
            snapshots=self.snapshots,
            requests=ReplayRequests(folder),
            replaying=self.replaying,
        )

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        self.num_replays += 1
        yield

    def handle(self, *kinds: AnomalyKind, step: int = 0, name: str | None = None) -> None:
        anomalies = [Anomaly(step=step, kind=kind, phase=None, name=name) for kind in kinds]
        self.handler.handle(StepTape(step), anomalies, is_complete=True)


def test_a_step_that_cannot_be_recorded_is_noted_with_the_reason(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", has_snapshot=False)
    handled.handle()
    handled.handle(step=2)  # nobody wants that one
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


def test_no_more_steps_are_replayed_than_were_asked_for(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", most_replays=1)
    handled.handle("gradient")
    handled.handle("gradient")
    assert handled.num_replays == 1


def test_skip_puts_weights_and_generators_back_to_where_the_step_began(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", "skip")
    before = handled.model.weight.detach().clone()
    handled.handler.begin()
    expected = torch.rand(3)
    with torch.no_grad():
        handled.model.weight.fill_(float("nan"))
    handled.handle("weight")
    assert torch.equal(handled.model.weight, before)
    assert torch.equal(torch.rand(3), expected)
    assert handled.handler.num_undone == 1
    assert handled.snapshots.latest is None
    assert handled.handler.complaint is None


def test_a_step_that_cannot_be_undone_is_complained_about_once(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run", "skip", has_snapshot=False)
    handled.handle("loss", step=4)
    handled.handle("loss", step=5)
    assert handled.handler.complaint == "step 4 could not be undone: no snapshot leads to it."
    assert handled.handler.num_undone == 0


def test_a_single_process_asks_nobody(tmp_path: Path) -> None:
    handled = Handled(tmp_path / "run")
    handled.handler.ask(0)
    assert not (tmp_path / "run" / "replay").exists()
