"""A loss that is the sum of its halves is reported; a mean, and a sum that the loop divides, are silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose.loss.factor import mixed_reductions, summed_losses
from roundoff.record import recording
from roundoff.runs import HalfBatchProbe, HalvedTerm, Run, Severity
from tests.run_folders import write_run


def half_batch(loss: float, *halves: float) -> HalfBatchProbe:
    return HalfBatchProbe(step=9, loss=loss, halves=halves)


def test_halves_that_add_up_to_the_whole_are_reported(tmp_path: Path) -> None:
    (finding,) = summed_losses(write_run(tmp_path / "run", half_batch(12.0, 7.0, 5.0)))
    assert (finding.rule, finding.step) == ("loss-sum-reduction", 0)
    assert finding.why.startswith("step 9 replayed with each half of its batch gives 7 and 5, which add up")


def test_halves_whose_mean_is_the_whole_are_silent(tmp_path: Path) -> None:
    assert summed_losses(write_run(tmp_path / "run", half_batch(6.0, 7.0, 5.0))) == []
    assert summed_losses(write_run(tmp_path / "other", half_batch(0.0, 0.0, 0.0))) == []


def test_a_sum_that_the_loop_divides_by_a_number_is_silent(tmp_path: Path) -> None:
    assert [finding.rule for finding in summed_losses(recorded(tmp_path / "a", lambda total: total))] == [
        "loss-sum-reduction"
    ]
    assert summed_losses(recorded(tmp_path / "b", lambda total: total / 16)) == []


def test_losses_that_are_divided_one_by_one_are_silent(tmp_path: Path) -> None:
    assert summed_losses(recorded(tmp_path / "a", lambda losses: losses.sum(), reduction="none"))
    assert summed_losses(recorded(tmp_path / "b", lambda losses: (losses / 16).sum(), reduction="none")) == []


def terms(*values: HalvedTerm) -> HalfBatchProbe:
    return HalfBatchProbe(step=9, loss=1.0, halves=(1.0, 1.0), size=32, terms=values)


def term(value: float, first: float, second: float, *, factor: float = 0.5) -> HalvedTerm:
    return HalvedTerm(value=value, halves=(first, second), factor=factor, source="vae.py:7")


MEAN = term(0.5, 0.45, 0.56, factor=1.0)


def test_a_sum_next_to_a_mean_is_reported_with_its_line(tmp_path: Path) -> None:
    (finding,) = mixed_reductions(write_run(tmp_path / "run", terms(MEAN, term(12.0, 7.0, 5.0))))
    assert (finding.rule, finding.severity, finding.source) == ("mixed-reductions", Severity.WARNING, "vae.py:7")
    assert "gives 7 and 5 for one term (vae.py:7), which add up to its 12" in finding.why
    assert "the sum weighs 32 times as much" in finding.why


@pytest.mark.parametrize(
    "other",
    [
        term(12.0, 13.0, 11.0),
        term(12.0, 7.0, 5.0, factor=1 / 32),
        term(12.0, 12.0, 12.0),
        term(0.0, 0.0, 0.0),
        term(12.0, 6.0, 9.0),
    ],
    ids=["two means", "divided by the loop", "of the weights", "nothing", "neither"],
)
def test_other_pairs_of_terms_are_fine(tmp_path: Path, other: HalvedTerm) -> None:
    assert mixed_reductions(write_run(tmp_path / "run", terms(MEAN, other))) == []


def test_two_sums_are_fine(tmp_path: Path) -> None:
    assert mixed_reductions(write_run(tmp_path / "run", terms(term(12.0, 7.0, 5.0), term(3.0, 1.0, 2.0)))) == []


def recorded(folder: Path, loss_of: Callable[[Tensor], Tensor], *, reduction: str = "sum") -> Run:
    """Record a step whose loss is made of a sum, and write next to it what half of its batch gave."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, to=folder, steps=[0], inputs=True):
        total: Tensor = F.cross_entropy(model(torch.randn(16, 4)), torch.randint(0, 3, (16,)), reduction=reduction)
        loss_of(total).backward()
        optimizer.step()
    with (folder / "probes.jsonl").open("w") as file:
        file.write('{"probe": "half-batch", "step": 0, "loss": 12.0, "halves": [7.0, 5.0]}\n')
    return Run.open(folder)
