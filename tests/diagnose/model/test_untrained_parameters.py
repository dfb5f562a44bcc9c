"""Parameters that no optimizer trains: left out, replaced, hidden, frozen; and those that need none."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from roundoff.diagnose.model.untrained_parameters import uncovered_parameters
from roundoff.runs import OptimizerFacts, ParameterFacts, Structure
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training
from tests.run_folders import parameter_rows, write_run


def test_a_layer_that_was_left_out_is_named(tmp_path: Path) -> None:
    run = watched_training(
        tmp_path / "run", mlp(nn.ReLU()), optimizer=lambda model: torch.optim.SGD(model[0].parameters(), lr=0.1)
    )
    finding = only(uncovered_parameters, run)
    assert (finding.rule, finding.step, finding.site, finding.parameter) == ("not-in-optimizer", 0, "2", "2.weight")
    assert finding.evidence == ({"left_out": ["2.weight", "2.bias"], "num_parameters": 4},)


def test_a_layer_that_was_replaced_is_reported_with_both_lists(tmp_path: Path) -> None:
    def replaced(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[2] = nn.Linear(16, 4)
        return optimizer

    finding = only(uncovered_parameters, watched_training(tmp_path / "run", mlp(nn.ReLU()), optimizer=replaced))
    assert (finding.rule, finding.site) == ("stale-optimizer-parameters", "2")
    assert finding.evidence == ({"in_model": ["2.weight", "2.bias"]}, {"in_optimizer": ["4x16", "4"]})


def test_a_tensor_in_a_plain_attribute_is_reported_by_the_attribute(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = {"first": torch.ones(8, requires_grad=True)}
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x * self.scales["first"])

    finding = only(uncovered_parameters, watched_training(tmp_path / "run", Scaled()))
    assert (finding.rule, finding.parameter) == ("unregistered-parameter", "scales['first']")


def test_frozen_parameters_are_a_note(tmp_path: Path) -> None:
    model = mlp(nn.ReLU())
    model[0].requires_grad_(False)
    finding = only(uncovered_parameters, watched_training(tmp_path / "run", model))
    assert (finding.rule, str(finding.severity), finding.parameter) == ("frozen", "note", "0.weight")


def test_a_training_that_has_all_its_parameters_in_an_optimizer_is_fine(tmp_path: Path) -> None:
    assert uncovered_parameters(watched_training(tmp_path / "run", mlp(nn.ReLU()))) == []


def test_master_weights_by_hand_are_fine(tmp_path: Path) -> None:
    class Master(torch.optim.SGD):
        def __init__(self, model: nn.Module) -> None:
            self.live = list(model.parameters())
            super().__init__([p.detach().clone().requires_grad_() for p in self.live], lr=0.1)

        def step(self, closure: object = None) -> None:
            for master, live in zip(self.param_groups[0]["params"], self.live, strict=True):
                master.grad = live.grad
            super().step()
            with torch.no_grad():
                for master, live in zip(self.param_groups[0]["params"], self.live, strict=True):
                    live.copy_(master)

        def zero_grad(self, set_to_none: bool = True) -> None:
            for live in self.live:
                live.grad = None

    assert uncovered_parameters(watched_training(tmp_path / "run", mlp(nn.ReLU()), optimizer=Master)) == []


def test_models_that_are_trained_in_turn_are_not_frozen(tmp_path: Path) -> None:
    parameters = [
        ParameterFacts(name=f"{name}.weight", site=name, shape=(2, 2), dtype="float32", requires_grad=name == "maker")
        for name in ("maker", "critic")
    ]
    facts = Structure(step=0, parameters=tuple(parameters), optimizers=(OptimizerFacts(name="Adam"),))
    assert [f.rule for f in uncovered_parameters(write_run(tmp_path / "never", facts))] == ["frozen"]
    updates = parameter_rows({"step": step, "parameter": "critic.weight", "update_l2": 0.1} for step in (0, 2))
    assert uncovered_parameters(write_run(tmp_path / "in turn", facts, updates)) == []
