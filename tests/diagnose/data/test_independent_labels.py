"""A loss that stays at chance, though one batch is learned by heart: labels and inputs do not belong together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.data.labels import guessing, independent_labels
from roundoff.runs import BatchFacts, CriterionCall, OverfitProbe, ParameterFacts, Run, Severity
from tests.diagnose.findings import only
from tests.run_folders import labels, losses, tensor, write_run

FOUR = labels({"0": 8, "1": 8, "2": 8, "3": 8})
NUMBERS = tensor("target", (32, 1), std=2.0)
ANSWERS = tensor("target", (32,), min=0.0, max=1.0, mean=0.25, std=math.sqrt(0.1875))


def trained(
    folder: Path,
    target: Any = FOUR,
    criterion: str = "cross_entropy",
    *,
    late: float,
    tried: float,
    num_steps: int = 200,
) -> Run:
    batches = [BatchFacts(step=step, targets=(target,), criterion=criterion) for step in range(20)]
    probe = OverfitProbe(step=num_steps - 1, losses=(late, (late + tried) / 2, tried))
    return write_run(folder, batches, losses(*[late] * num_steps), probe)


@pytest.mark.parametrize(
    ("target", "criterion", "chance"),
    [
        (FOUR, "cross_entropy", math.log(4)),
        (NUMBERS, "MSELoss", 4.0),
        (ANSWERS, "BCEWithLogitsLoss", -0.25 * math.log(0.25) - 0.75 * math.log(0.75)),
    ],
)
def test_is_named_against_what_knowing_nothing_gives(
    target: Any, criterion: str, chance: float, tmp_path: Path
) -> None:
    finding = only(independent_labels, trained(tmp_path / "run", target, criterion, late=chance, tried=chance / 2))
    assert finding.rule == "labels-independent"
    assert finding.evidence[0]["chance"] == pytest.approx(chance)


def test_frozen_layers_are_another_explanation(tmp_path: Path) -> None:
    def weight(name: str, *, trains: bool) -> ParameterFacts:
        return ParameterFacts(name=name, site=name, shape=(8, 8), dtype="float32", requires_grad=trains)

    chance = math.log(4)
    batches = [BatchFacts(step=step, targets=(FOUR,), criterion="cross_entropy") for step in range(20)]
    contents = [batches, losses(*[chance] * 200), OverfitProbe(step=199, losses=(chance, 1.0, 0.5))]
    parameters = [weight("0.weight", trains=False), weight("1.weight", trains=True)]
    finding = only(independent_labels, write_run(tmp_path / "run", *contents, *parameters))
    assert "frozen layers lose them" in finding.title
    assert "1 of 2 parameters do not train" in finding.why
    assert finding.confidence == 0.5


@pytest.mark.parametrize(
    ("late", "tried", "num_steps"),
    [
        (1.0, 0.5, 200),  # something was learned
        (math.log(4), math.log(4), 200),  # nothing can be learned at all: another fault
        (math.log(4), 0.5, 60),  # too early to say
        (5.0, 0.5, 200),  # worse than chance: another fault
    ],
)
def test_anything_else_is_another_matter(late: float, tried: float, num_steps: int, tmp_path: Path) -> None:
    assert independent_labels(trained(tmp_path / "run", late=late, tried=tried, num_steps=num_steps)) == []


def test_a_loss_at_chance_is_noted_even_where_nothing_explains_it(tmp_path: Path) -> None:
    finding = only(guessing, trained(tmp_path / "run", late=math.log(4), tried=math.log(4)))
    assert (finding.rule, finding.severity) == ("stays-at-guessing", Severity.NOTE)


def test_a_loss_computed_inside_the_model_is_judged_by_its_criterion_there(tmp_path: Path) -> None:
    batches = [
        BatchFacts(step=step, tensors=(tensor("<model>:labels", (32,), counts=FOUR.counts),)) for step in range(9)
    ]
    call = CriterionCall(step=0, function="cross_entropy", settings={"reduction": "mean"})
    run = write_run(tmp_path / "run", batches, call, losses(*[math.log(4)] * 200))
    assert only(guessing, run).rule == "stays-at-guessing"


@pytest.mark.parametrize(("late", "num_steps"), [(1.0, 200), (math.log(4), 60)])
def test_a_loss_that_fell_or_is_young_is_not_noted(late: float, num_steps: int, tmp_path: Path) -> None:
    assert guessing(trained(tmp_path / "run", late=late, tried=late, num_steps=num_steps)) == []
