"""The parts of a watch: what each sees, and what a failure of one does to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.runs import FlightRecorder, RunInfo, RunWriter, flight_path
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch


def watch_into(folder: Path, **settings: Any) -> Watch:
    return Watch(
        RunWriter.create(folder, RunInfo()),
        WatchSettings(**settings),
        sites=Sites(),
        flight=FlightRecorder.create(flight_path(folder, rank=0)),
    )


def test_the_first_steps_are_watched_fully_and_all_of_them_where_that_is_requested(tmp_path: Path) -> None:
    on = watch_into(tmp_path / "a", full_steps=2)
    seen = []
    for on.clock.step in range(4):
        seen.append(on.is_fully_watched)
    assert seen == [True, True, False, False]
    every = watch_into(tmp_path / "b", full_steps=0, every_step=True)
    assert every.is_fully_watched


@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_loss_function_of_the_loop_is_that_of_training_or_of_an_evaluation(
    with_gradients: bool, tmp_path: Path
) -> None:
    on, weight = watch_into(tmp_path / "run"), nn.Parameter(torch.ones(2, 3))
    on._tape.release()
    on._tape.begin()
    with torch.set_grad_enabled(with_gradients):
        F.cross_entropy(weight, torch.tensor([0, 1]))
    on._tape.hold()
    assert len(on._detector.eval_losses) == (0 if with_gradients else 1)
    assert on._facts._criterion_input.get("num_classes") == (3 if with_gradients else None)


def test_a_tape_that_failed_makes_its_step_unfit_to_be_played_again(tmp_path: Path) -> None:
    on, weight = watch_into(tmp_path / "run"), nn.Parameter(torch.ones(2))

    def fails(args: Any, result: Any) -> None:
        raise ValueError("cannot look")

    on._tape.on_loss = fails
    on._tape.release()
    on._tape.begin()
    F.mse_loss(weight, torch.zeros(2))
    on._tape.hold()
    assert on._tape.so_far().why_not_replayable == "ValueError: cannot look"


def test_a_bad_number_that_the_loop_reads_becomes_a_suspect(tmp_path: Path) -> None:
    on, weight = watch_into(tmp_path / "run"), nn.Parameter(torch.tensor(float("nan")))
    on._tape.release()
    on._tape.begin()
    (weight * 2).item()
    on._tape.hold()
    assert on._detector.drop_suspect()
