"""The calls of every step and its line of metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record.loop.step_clock import StepClock
from roundoff.runs import NoDetail, Run, RunInfo, RunWriter, StepDetail
from roundoff.watch.journal import StepJournal, mean


class Loop:
    """A loop that takes a number of steps and closes each in the journal."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.writer = RunWriter.create(folder, RunInfo())
        self.clock = StepClock(self.close, has_optimizer=lambda: True)
        self.journal = StepJournal(self.writer, self.clock, **limits)
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.25)
        self.scale: torch.Tensor | None = None

    def close(self) -> None:
        self.journal.close_step(
            losses=[torch.tensor(1.0), torch.tensor(2.0)],
            eval_losses=[],
            optimizer=self.optimizer,
            name="SGD",
            scale=self.scale,
            grad_norm=None,
            update_norm=0.5,
        )

    def step(self, *calls: str, attempts: bool = True) -> None:
        self.clock.forward(with_gradients=True)
        for call in calls:
            self.journal.call(call, NoDetail())
        self.clock.backward_enter()
        self.clock.backward_leave()
        if attempts:
            self.clock.step_enter(self.optimizer)
            self.clock.step_leave(self.optimizer)
        else:
            self.clock.zero_grad()

    def ended(self) -> Run:
        self.clock.forward(with_gradients=True)
        self.writer.close()
        return Run.open(self.writer.folder)


def test_each_step_has_a_line_with_what_it_came_to(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.scale = torch.tensor(8.0)
    loop.step()
    (metrics,) = loop.ended().metrics()
    assert (metrics.step, metrics.loss, metrics.eval_loss, metrics.lr) == (0, 1.5, None, 0.25)
    assert (metrics.loss_scale, metrics.update_norm, metrics.optimizer) == (8.0, 0.5, "SGD")


def test_a_step_without_an_attempt_has_no_learning_rate(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.step(attempts=False)
    (metrics,) = loop.ended().metrics()
    assert (metrics.lr, metrics.optimizer) == (None, None)


def test_after_a_hundred_steps_only_calls_that_differ_from_the_step_before_are_written(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    for step in range(110):
        loop.step("forward", *(["eval"] if step == 105 else []))
    written: dict[int, list[str]] = {}
    for call in loop.ended().calls():
        written.setdefault(call.step, []).append(call.call)
    assert sorted(written) == [*range(100), 105, 106]
    assert written[105] == ["forward", "eval"]


def test_the_first_steps_of_another_optimizer_are_written_whenever_it_takes_over(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    for step in range(210):
        loop.journal.call("step", StepDetail(optimizer="AdamW" if step < 150 else "AdamW#2"))
        loop.step()
    written = [call.detail_as(StepDetail).optimizer for call in loop.ended().calls()]
    assert written.count("AdamW#2") == 1
    assert len(written) < 105


def test_calls_are_open_until_their_step_closes(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.step("zero_grad")
    assert [call.call for call in loop.journal.open_calls] == ["zero_grad"]
    loop.step("clip")
    assert [(call.call, call.step) for call in loop.journal.open_calls] == [("clip", 1)]


def test_without_a_board_nothing_is_drawn(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.step()
    loop.journal.close()
    loop.ended()
    assert not [path.name for path in loop.writer.folder.iterdir() if "tfevents" in path.name]


@pytest.mark.parametrize(("values", "expected"), [([], None), ([1.0, 4.0], 2.5)])
def test_the_mean_of_nothing_is_nothing(values: list[float], expected: float | None) -> None:
    assert mean([torch.tensor(value) for value in values]) == expected


def test_of_a_long_training_ever_fewer_steps_are_written_and_the_last_all(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", dense_steps=16, max_calls=200, num_last=8)
    for step in range(1000):
        loop.step("forward", *(["clip"] if step % 2 else []))
    loop.clock.forward(with_gradients=True)
    loop.journal.close()
    run = loop.ended()
    steps = [metrics.step for metrics in run.metrics()]
    assert steps[:20] == [*range(16), 16, 18, 20, 22]
    assert steps[-8:] == list(range(992, 1000))
    assert len(steps) < 16 + 8 * 7 + 8
    assert steps == sorted(steps)
    assert len({call.step for call in run.calls()}) < 300


def test_a_step_with_new_calls_is_written_whenever_it_comes(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", dense_steps=16, max_calls=100, num_last=8)
    for step in range(1001):
        loop.step("forward", *(["clip"] if step % 2 else []), *(["save"] if step == 999 else []))
    loop.clock.forward(with_gradients=True)
    assert [call.step for call in loop.ended().calls() if call.call == "save"] == [999]
