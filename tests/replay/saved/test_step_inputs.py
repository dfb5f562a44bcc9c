"""What a step started from, written; that it comes back is in test_saved_state.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.replay.arguments import ExternalTensor
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.state import Training
from roundoff.replay.step_tape import Ambient, FunctionEntry, StepTape
from roundoff.runs import Run, RunInfo, RunWriter


class Written:
    """The folder of a step of some models and optimizers."""

    def __init__(self, folder: Path, models: list[nn.Module], *optimizers: torch.optim.Optimizer, **tape: Any) -> None:
        training, sites = Training(), Sites()
        for model in models:
            training.add_model(model)
            sites.add_model(model)
        for optimizer in optimizers:
            training.add_optimizer(optimizer)
        with RunWriter.create(folder, RunInfo()) as writer:
            before = StepInputsWriter(writer, training, sites)
            before.write_state()
            before.write_batch(StepTape(2, **tape))
        self.run = Run.open(folder)
        self.tape: Any = self.run.replay_tape()


def test_tensors_without_a_form_in_the_file_are_left_out_and_the_rest_is_there(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    external = [ExternalTensor(torch.eye(2).to_sparse()), ExternalTensor(torch.ones(3))]
    written = Written(tmp_path / "run", [model], external=external)
    assert sorted(key for key in written.run.replay_state() if key.startswith("model")) == [
        "model/bias",
        "model/weight",
    ]
    assert list(written.run.replay_batch()) == ["outside1"]


def test_gradients_and_the_state_of_optimizers_are_there_by_name(tmp_path: Path) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    written = Written(tmp_path / "run", [model], optimizer)
    state = written.run.replay_state()
    assert {"gradient/model/weight", "optimizer/0/exp_avg", "generator/torch"} <= set(state)
    assert state["optimizer/0/exp_avg"].tolist() == optimizer.state[model.weight]["exp_avg"].tolist()
    assert written.tape["optimizers"] == ["Adam"]


def test_an_optimizer_of_another_training_in_the_same_process_is_none_of_it(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 1), nn.Parameter(torch.ones(1))
    optimizers = torch.optim.SGD([other]), torch.optim.Adam(model.parameters())
    assert Written(tmp_path / "run", [model], *optimizers).tape["optimizers"] == ["Adam"]


def test_modules_of_torch_without_parameters_are_described_so_that_they_can_be_rebuilt(tmp_path: Path) -> None:
    model, loss = nn.Linear(2, 1), nn.CrossEntropyLoss(label_smoothing=0.25)
    first, second = Written(tmp_path / "run", [model, loss]).tape["models"]
    assert first == {"class": "Linear", "attributes": None}
    assert (second["class"], second["attributes"]["label_smoothing"]) == ("CrossEntropyLoss", 0.25)


def test_modules_in_eval_mode_are_listed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    assert Written(tmp_path / "run", [model]).tape["in_eval"] == [[0, "1"]]


def test_a_step_that_cannot_be_written_says_why_and_keeps_its_batch(tmp_path: Path) -> None:
    def own(x: Any) -> Any:
        return x

    external = ExternalTensor(torch.ones(2))
    call = FunctionEntry(own, (external,), {}, Ambient(True, ()), None)
    written = Written(tmp_path / "run", [nn.Linear(2, 1)], entries=[call], external=[external])
    assert (written.tape["calls"], written.tape["untold"]) == ([], "the step uses the function own")
    assert written.run.replay_batch()["outside0"].tolist() == [1, 1]
