"""What is looked at in every step, and what among it cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.runs import Run, RunInfo, RunWriter
from roundoff.watch.budget import TimeBudget
from roundoff.watch.detector import AnomalyDetector

NAN = float("nan")


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def lookout(tmp_path: Path, model: nn.Module) -> AnomalyDetector:
    sites = Sites()
    sites.add_model(model)
    return AnomalyDetector(RunWriter.create(tmp_path / "run", RunInfo()), sites=sites, budget=TimeBudget(0.0))


def kinds(lookout: AnomalyDetector) -> list[str]:
    return [anomaly.kind for anomaly in lookout.anomalies]


def optimizer_with(model: nn.Module, gradient: float) -> torch.optim.Optimizer:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_loss_that_is_not_finite_is_noted_at_once_and_once(lookout: AnomalyDetector) -> None:
    lookout.see_loss(torch.tensor(1.0))
    assert not lookout.has_new
    lookout.see_loss(torch.tensor(NAN))
    assert [anomaly.kind for anomaly in lookout.take_new()] == ["loss"]
    lookout.end_attempt()
    assert kinds(lookout) == ["loss"]
    assert not lookout.take_new()


@pytest.mark.parametrize("root", [None, "loss", torch.ones(2)])
def test_what_is_no_single_number_is_no_loss(lookout: AnomalyDetector, root: object) -> None:
    assert lookout.see_loss(root) is None
    assert lookout.losses == []


def test_the_loss_that_is_kept_does_not_change_with_the_one_of_the_loop(lookout: AnomalyDetector) -> None:
    loss = torch.tensor(1.0)
    seen = lookout.see_loss(loss)
    loss.add_(5)
    assert seen is not None
    assert (seen.item(), lookout.losses[0].item()) == (1.0, 1.0)


def test_a_bad_number_that_the_loop_reads_counts_if_it_does_not_go_backward_from_it(lookout: AnomalyDetector) -> None:
    bad = nn.Parameter(torch.tensor(NAN)) * 1
    lookout.see_scalar(bad)
    lookout.see_loss(torch.tensor(1.0))  # it went backward from another
    assert not lookout.drop_suspect()
    lookout.see_scalar(bad)
    assert lookout.drop_suspect()
    assert kinds(lookout) == ["loss"]
    lookout.see_scalar(bad)
    assert not lookout.drop_suspect()  # one loss of a step is enough


def test_a_number_without_a_graph_is_no_suspect(lookout: AnomalyDetector) -> None:
    lookout.see_scalar(torch.tensor(NAN))
    assert not lookout.drop_suspect()


def test_losses_of_evaluations_come_as_tensors_or_inside_of_outputs(lookout: AnomalyDetector) -> None:
    class Output:
        loss = torch.tensor([3.0])

    for output in (torch.tensor(2.0), Output(), torch.ones(2), torch.tensor(1), "text"):
        lookout.see_eval_loss(output)
    assert [loss.item() for loss in lookout.eval_losses] == [2.0, 3.0]


def test_the_parameter_whose_gradient_is_bad_is_named(lookout: AnomalyDetector, model: nn.Module) -> None:
    optimizer = optimizer_with(model, 1.0)
    model.bias.grad = torch.tensor([NAN])
    lookout.see_gradients(optimizer, fully=True, always=False)
    (anomaly,) = lookout.anomalies
    assert (anomaly.kind, anomaly.phase, anomaly.name) == ("gradient", "backward", "bias")


def test_an_optimizer_that_may_skip_is_trusted_with_its_gradients(lookout: AnomalyDetector, model: nn.Module) -> None:
    optimizer = optimizer_with(model, NAN)
    optimizer.may_skip = True  # type: ignore[attr-defined]
    lookout.see_gradients(optimizer, fully=True, always=False)
    assert kinds(lookout) == []


def test_without_budget_gradients_are_looked_at_only_where_they_must_be(
    lookout: AnomalyDetector, model: nn.Module
) -> None:
    optimizer = optimizer_with(model, 2.0)
    lookout.see_gradients(optimizer, fully=False, always=False)
    assert lookout.grad_norm is None
    lookout.see_gradients(optimizer, fully=False, always=True)
    assert lookout.grad_norm == pytest.approx(12**0.5)
    lookout.see_update()
    assert lookout.update_norm is None


def test_weights_that_an_update_broke_are_noted(lookout: AnomalyDetector, model: nn.Module) -> None:
    optimizer = optimizer_with(model, 1.0)
    lookout.see_gradients(optimizer, fully=True, always=False)
    with torch.no_grad():
        model.weight.fill_(float("inf"))
    lookout.see_update()
    assert kinds(lookout) == ["weight"]


def test_an_update_that_did_not_happen_is_not_measured(lookout: AnomalyDetector, model: nn.Module) -> None:
    lookout.see_gradients(optimizer_with(model, 1.0), fully=True, always=False)
    lookout.drop_update()
    lookout.see_update()
    assert lookout.update_norm is None


def test_a_bad_buffer_is_noted_once(lookout: AnomalyDetector) -> None:
    buffers = [("fine", torch.ones(2)), ("bad", torch.tensor([1.0, NAN]))]
    for _ in range(3):
        lookout.see_buffers(buffers)
    assert [anomaly.name for anomaly in lookout.anomalies] == ["bad"]


def test_a_jump_of_the_loss_is_a_spike_with_what_it_was_held_against(lookout: AnomalyDetector) -> None:
    for step in range(60):
        lookout.see_loss(torch.tensor(100.0 if step == 59 else 1.0 + 0.01 * (step % 5)))
        lookout.end_attempt()
        lookout.new_step(step + 1)
    (anomaly,) = lookout.anomalies
    assert (anomaly.kind, anomaly.step, anomaly.value) == ("spike", 59, 100.0)
    assert anomaly.detail["median"] == pytest.approx(1.02)


@pytest.mark.parametrize(("last", "has_fallen"), [(0.5, True), (0.9, False)])
def test_the_loss_has_fallen_when_the_last_ones_are_clearly_lower(
    lookout: AnomalyDetector, last: float, has_fallen: bool
) -> None:
    assert not lookout.loss_has_fallen
    for value in [1.0] * 10 + [last] * 10:
        lookout.see_loss(torch.tensor(value))
        lookout.end_attempt()
        lookout.new_step(0)
    assert lookout.loss_has_fallen is has_fallen


def test_consequences_of_consequences_are_counted_but_not_written(lookout: AnomalyDetector, tmp_path: Path) -> None:
    for _ in range(60):
        lookout.note("loss", phase="forward")
    lookout._writer.flush()
    assert len(lookout.anomalies) == 60
    assert len(Run.open(tmp_path / "run").anomalies()) == 50
