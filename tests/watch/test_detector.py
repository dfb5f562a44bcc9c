"""What is looked at in every step, and what among it cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.runs import Run, RunInfo, RunWriter, SpikeDetail
from roundoff.watch.budget import TimeBudget
from roundoff.watch.detector import AnomalyDetector
from tests.record.scaled_sgd import ScaledSGD

NAN = float("nan")


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def detector(tmp_path: Path, model: nn.Module) -> AnomalyDetector:
    sites = Sites()
    sites.add_model(model)
    return AnomalyDetector(RunWriter.create(tmp_path / "run", RunInfo()), sites=sites, budget=TimeBudget(0.0))


def kinds(detector: AnomalyDetector) -> list[str]:
    return [anomaly.kind for anomaly in detector.anomalies]


def optimizer_with(model: nn.Module, gradient: float) -> torch.optim.Optimizer:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_loss_that_is_not_finite_is_noted_at_once_and_once(detector: AnomalyDetector) -> None:
    detector.see_loss(torch.tensor(1.0))
    assert not detector.new
    detector.see_loss(torch.tensor(NAN))
    assert [anomaly.kind for anomaly in detector.take_new()] == ["loss"]
    detector.end_attempt()
    assert kinds(detector) == ["loss"]
    assert not detector.take_new()


def test_the_loss_that_is_kept_does_not_change_with_the_one_of_the_loop(detector: AnomalyDetector) -> None:
    loss = torch.tensor(1.0)
    detector.see_loss(loss)
    loss.add_(5)
    assert detector.losses[0] == 1.0


def test_a_bad_number_that_the_loop_reads_counts_if_it_does_not_go_backward_from_it(detector: AnomalyDetector) -> None:
    bad = nn.Parameter(torch.tensor(NAN)) * 1
    detector.see_scalar(bad)
    detector.see_loss(torch.tensor(1.0))  # it went backward from another
    assert not detector.drop_suspect()
    detector.see_scalar(bad)
    assert detector.drop_suspect()
    assert kinds(detector) == ["loss"]
    detector.see_scalar(bad)
    assert not detector.drop_suspect()  # one loss of a step is enough


def test_a_number_without_a_graph_is_no_suspect(detector: AnomalyDetector) -> None:
    detector.see_scalar(torch.tensor(NAN))
    assert not detector.drop_suspect()


def test_losses_of_evaluations_come_as_tensors_or_inside_of_outputs(detector: AnomalyDetector) -> None:
    class Output:
        loss = torch.tensor([3.0])

    for output in (torch.tensor(2.0), Output(), torch.ones(2), torch.tensor(1), "text"):
        detector.see_eval_loss(output)
    assert [loss.item() for loss in detector.eval_losses] == [2.0, 3.0]


def test_the_parameter_whose_gradient_is_bad_is_named(detector: AnomalyDetector, model: nn.Module) -> None:
    optimizer = optimizer_with(model, 1.0)
    model.bias.grad = torch.tensor([NAN])
    detector.see_gradients(optimizer, fully=True, always=False)
    (anomaly,) = detector.anomalies
    assert (anomaly.kind, anomaly.phase, anomaly.name) == ("gradient", "backward", "bias")


def test_an_optimizer_that_may_skip_is_trusted_with_its_gradients(detector: AnomalyDetector, model: nn.Module) -> None:
    optimizer_with(model, NAN)
    optimizer = ScaledSGD(model.parameters())
    detector.see_gradients(optimizer, fully=True, always=False)
    assert kinds(detector) == []


def test_without_budget_gradients_are_looked_at_only_where_they_must_be(
    detector: AnomalyDetector, model: nn.Module
) -> None:
    optimizer = optimizer_with(model, 2.0)
    detector.see_gradients(optimizer, fully=False, always=False)
    assert detector.grad_norm is None
    detector.see_gradients(optimizer, fully=False, always=True)
    assert detector.grad_norm == pytest.approx(12**0.5)
    detector.see_update()
    assert detector.update_norm is None


def test_weights_that_an_update_broke_are_noted(detector: AnomalyDetector, model: nn.Module) -> None:
    optimizer = optimizer_with(model, 1.0)
    detector.see_gradients(optimizer, fully=True, always=False)
    with torch.no_grad():
        model.weight.fill_(float("inf"))
    detector.see_update()
    assert kinds(detector) == ["weight"]


def test_an_update_that_did_not_happen_is_not_measured(detector: AnomalyDetector, model: nn.Module) -> None:
    detector.see_gradients(optimizer_with(model, 1.0), fully=True, always=False)
    detector.drop_update()
    detector.see_update()
    assert detector.update_norm is None


def test_a_bad_buffer_is_noted_once(detector: AnomalyDetector) -> None:
    buffers = [("fine", torch.ones(2)), ("bad", torch.ones(2))]
    detector.see_buffers(buffers)
    buffers[1][1][1] = NAN
    for _ in range(3):
        detector.see_buffers(buffers)
    assert [anomaly.name for anomaly in detector.anomalies] == ["bad"]


def test_a_buffer_that_was_never_finite_counts_only_if_a_norm_owns_it(detector: AnomalyDetector) -> None:
    detector.see_buffers([("observer.min_val", torch.tensor(torch.inf)), ("norm.running_var", torch.tensor([NAN]))])
    assert [anomaly.name for anomaly in detector.anomalies] == ["norm.running_var"]


def test_a_jump_of_the_loss_is_a_spike_with_what_it_was_held_against(detector: AnomalyDetector) -> None:
    for step in range(60):
        detector.see_loss(torch.tensor(100.0 if step == 59 else 1.0 + 0.01 * (step % 5)))
        detector.end_attempt()
        detector.new_step(step + 1)
    (anomaly,) = detector.anomalies
    assert (anomaly.kind, anomaly.step, anomaly.value) == ("spike", 59, 100.0)
    assert anomaly.detail_as(SpikeDetail).median == pytest.approx(1.02)


@pytest.mark.parametrize(("last", "has_fallen"), [(0.5, True), (0.9, False)])
def test_the_loss_has_fallen_when_the_last_ones_are_clearly_lower(
    detector: AnomalyDetector, last: float, has_fallen: bool
) -> None:
    assert not detector.loss_has_fallen
    for value in [1.0] * 10 + [last] * 10:
        detector.see_loss(torch.tensor(value))
        detector.end_attempt()
        detector.new_step(0)
    assert detector.loss_has_fallen is has_fallen


def test_consequences_of_consequences_are_counted_but_not_written(detector: AnomalyDetector, tmp_path: Path) -> None:
    for _ in range(60):
        detector.note("loss", phase="forward")
    detector._writer.flush()
    assert len(detector.anomalies) == 60
    assert len(Run.open(tmp_path / "run").anomalies()) == 50
