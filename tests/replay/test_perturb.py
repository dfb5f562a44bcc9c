import torch
from torch import nn

from roundoff.replay.replayed_step import perturb_parameters_


def test_every_number_moves_by_about_one_unit_in_the_last_place():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2).double())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    perturb_parameters_(model.modules())
    for old, new in zip(before, model.parameters(), strict=True):
        moved = (new.detach() - old).abs() / (old.abs() * torch.finfo(old.dtype).eps)
        assert moved.min() > 0.4
        assert moved.max() < 2.1


def test_some_go_up_and_some_go_down():
    model = nn.Linear(16, 16)
    before = model.weight.detach().clone()
    perturb_parameters_([model])
    up = (model.weight.detach().abs() > before.abs()).float().mean()
    assert 0.3 < up < 0.7


def test_a_parameter_that_two_modules_share_moves_once():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    alone = nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    alone.load_state_dict(first.state_dict())
    perturb_parameters_([first, second])
    perturb_parameters_([alone])
    assert torch.equal(first.weight, alone.weight)


def test_the_training_draws_the_same_numbers_afterwards():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(4))
    model.step = nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)
    perturb_parameters_([model])
    assert torch.equal(torch.rand(4), expected)
    assert model.step.item() == 0
