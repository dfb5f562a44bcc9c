import pytest
import torch
from torch import nn

from roundoff.errors import ReplayError
from roundoff.record.loop.sites import Sites
from roundoff.replay.saved.builder import Built
from roundoff.replay.saved.saved_step import StateNames, load_state, models_of
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Run, RunInfo, RunWriter


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def saved(folder, models, optimizers) -> Run:
    """Save models and optimizers as they are before a step."""
    training, sites = Training(), Sites()
    for model in models:
        training.add_model(model)
        sites.add_model(model)
    for optimizer in optimizers:
        training.add_optimizer(optimizer)
    writer = RunWriter.create(folder, RunInfo())
    before = StepInputsWriter(writer, training, sites)
    before.write_state()
    before.write_batch(StepTape(3))
    return Run.open(folder)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()


def fitted(run: Run, built: Built) -> StateNames:
    tape, state = run.replay_tape(), run.replay_state()
    names = StateNames(models_of(built, tape, state), built.optimizers)
    load_state(names, tape, state)
    return names


def test_parameters_buffers_gradients_modes_and_optimizer_state_come_back(tmp_path):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    model[1].eval()
    run = saved(tmp_path / "run", [model], [optimizer])
    again = small()
    other = torch.optim.AdamW(again.parameters())
    fitted(run, Built(models=(again,), optimizers=(other,)))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert [module.training for module in again.modules()] == [True, True, False, True]
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        pairs = zip(optimizer.state[ours].items(), other.state[theirs].items(), strict=True)
        assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_generators_come_back(tmp_path):
    run = saved(tmp_path / "run", [small()], [])
    expected = torch.rand(3)
    torch.manual_seed(99)
    fitted(run, Built(models=(small(),)))
    assert torch.equal(torch.rand(3), expected)


def test_weights_keep_the_dtype_they_were_saved_in_and_their_layout(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(torch.bfloat16)
    run = saved(tmp_path / "run", [model], [])
    again = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    fitted(run, Built(models=(again,)))
    assert again.weight.dtype == torch.bfloat16
    assert again.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(again.weight, model.weight)


def test_a_wrapped_model_is_found_under_its_bare_names(tmp_path):
    run = saved(tmp_path / "run", [nn.DataParallel(small())], [])
    assert "model/0.weight" in run.replay_state()
    fitted(run, Built(models=(small(),)))


def test_a_loss_of_torch_is_made_again_with_its_weights(tmp_path):
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), label_smoothing=0.1, reduction="sum")
    run = saved(tmp_path / "run", [small(), criterion], [])
    made = fitted(run, Built(models=(small(),))).models[1]
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    assert torch.equal(made(x, y), criterion(x, y))


def test_optimizers_may_come_in_any_order(tmp_path):
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    adam, sgd = torch.optim.Adam(first.parameters()), torch.optim.SGD(second.parameters(), 0.1)
    run = saved(tmp_path / "run", [first, second], [adam, sgd])
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = (torch.optim.SGD(two.parameters(), 0.1), torch.optim.Adam(one.parameters()))
    names = fitted(run, Built(models=(one, two), optimizers=optimizers))
    assert [type(optimizer).__name__ for optimizer in names.optimizers] == ["Adam", "SGD"]


def test_an_optimizer_with_fewer_parameters_is_refused(tmp_path):
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer)
    run = saved(tmp_path / "run", [model], [optimizer])
    again = small()
    with pytest.raises(ReplayError, match="has 2 parameters"):
        fitted(run, Built(models=(again,), optimizers=(torch.optim.Adam(again[0].parameters()),)))
