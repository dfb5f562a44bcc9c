"""A jump of the loss becomes one finding, with what else stood out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.loss.spike import loss_spikes
from roundoff.record import recording
from roundoff.runs import Metrics, Run, Severity, replay_path
from tests.run_folders import write_run

JUMP = [1.0 + 0.01 * (step % 7) for step in range(40)] + [8.0, 1.0, 1.0]


def write_losses(folder: Path, losses: list[float], *, update_before: float = 0.1) -> Run:
    updates = [update_before if step == 39 else 0.1 for step in range(len(losses))]
    steps = enumerate(zip(losses, updates, strict=True))
    return write_run(
        folder, [Metrics(step=step, loss=loss, update_norm=update, grad_norm=1.0) for step, (loss, update) in steps]
    )


def test_says_from_where_to_where_and_what_the_update_before_was(tmp_path: Path) -> None:
    (finding,) = diagnose_run(write_losses(tmp_path / "run", JUMP, update_before=3.0)).findings
    assert (finding.rule, finding.step, finding.severity) == ("loss-spike", 40, Severity.WARNING)
    assert finding.title == "the loss jumped from 1.03 to 8"
    assert finding.why == (
        "the highest of the 40 losses before it is 1.06\nThe update of the step before was 30 times as large as usual."
    )


def test_inputs_that_reach_far_point_at_the_batch(tmp_path: Path) -> None:
    def train(folder: Path, factor: float, step: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with recording(model, to=folder, steps=[step]):
            for _ in range(step + 1):
                model(torch.ones(2, 4) * factor).sum().backward()
                optimizer.step()

    train(tmp_path / "run", 1.0, 0)
    with (tmp_path / "run" / "metrics-rank0.jsonl").open("w") as file:
        file.writelines(Metrics(step=step, loss=loss).to_text() + "\n" for step, loss in enumerate(JUMP))
    train(replay_path(tmp_path / "run", step=40), 60.0, 40)
    (finding,) = loss_spikes(Run.open(tmp_path / "run"))
    assert finding.why.endswith("\nIts inputs reach 60, 60 times as much as elsewhere: check the batch.")


def test_healthy_losses_are_silent(tmp_path: Path) -> None:
    assert loss_spikes(write_losses(tmp_path / "run", JUMP[:40])) == []


def test_losses_of_two_optimizers_are_judged_apart(tmp_path: Path) -> None:
    two = [Metrics(step=step, loss=0.1 if step % 2 else 5.0, optimizer="ab"[step % 2]) for step in range(100)]
    assert loss_spikes(write_run(tmp_path / "run", two)) == []
