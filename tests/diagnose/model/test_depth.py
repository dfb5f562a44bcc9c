"""Gradients that vanish and activations that explode, layer by layer; and deep networks that do neither."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from roundoff.diagnose.model.layer_sequence import numbers_by_depth
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training


def deep(gate: type[nn.Module], num_layers: int = 10) -> nn.Sequential:
    return mlp(*(gate() for _ in range(num_layers)))


def test_gradients_that_vanish_are_reported_with_their_decay(tmp_path: Path) -> None:
    finding = only(numbers_by_depth, watched_training(tmp_path / "run", deep(nn.Sigmoid)))
    assert (finding.rule, finding.parameter) == ("vanishing-gradients", "0.weight")
    sizes = [entry["size"] for entry in finding.evidence]
    assert sizes[0] < 1e-5 * sizes[-1]


def test_activations_that_explode_are_reported_with_their_growth(tmp_path: Path) -> None:
    model = deep(nn.ReLU)
    for layer in list(model)[::2]:
        nn.init.normal_(layer.weight, std=1.0)
    run = watched_training(tmp_path / "run", model, num_steps=2)
    findings = [finding for finding in numbers_by_depth(run) if finding.rule == "exploding-activations"]
    assert [(finding.step, finding.site) for finding in findings] == [(0, "0")]


def test_a_deep_network_with_start_values_of_torch_is_fine(tmp_path: Path) -> None:
    assert numbers_by_depth(watched_training(tmp_path / "run", deep(nn.ReLU))) == []
