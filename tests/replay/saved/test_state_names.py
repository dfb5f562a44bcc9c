"""Names by which a training is known in every process that builds it."""

from __future__ import annotations

import torch
from torch import nn

from roundoff.replay.saved.state_names import ModulePlace, StateNames


def test_tensors_are_named_after_their_model_and_their_place_in_it() -> None:
    first, second = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(1, 1, bias=False)
    names = StateNames([first, second], [])
    assert names.key_of(first[0].weight) == "model/0.weight"
    assert names.key_of(second.weight) == "model1/weight"
    assert names.tensor("model/1.running_mean") is first[1].running_mean
    assert names.tensor("model/2.weight") is None
    assert names.key_of(torch.ones(1)) is None


def test_a_tied_weight_has_one_name() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    assert [key for key, _ in StateNames([model], []).tensors()] == ["model/0.weight"]


def test_optimizers_stand_in_the_order_of_what_they_move_whatever_order_they_come_in() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    of_second = torch.optim.SGD(model[1].parameters())
    of_first = torch.optim.Adam(model[0].parameters())
    names = StateNames([model], [of_second, of_first])
    assert names.optimizers == [of_first, of_second]
    assert (names.number_of(of_first), names.number_of(of_second)) == (0, 1)
    assert names.number_of(torch.optim.SGD(model.parameters())) is None


def test_parameters_of_no_model_are_named_after_their_optimizer() -> None:
    model, alone = nn.Linear(2, 2), nn.Parameter(torch.ones(1))
    names = StateNames([model], [torch.optim.SGD([*model.parameters(), alone])])
    assert names.key_of(alone) == "optimizer/2/parameter"


def test_modules_are_found_by_place_and_places_by_module() -> None:
    first, second = nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())
    names = StateNames([first, second], [])
    assert names.place_of(second[0]) == ModulePlace(1, "0")
    assert names.module_at(ModulePlace(1, "0")) is second[0]
    assert names.module_at(ModulePlace(2, "0")) is None
    assert names.place_of(nn.ReLU()) is None


def test_a_wrapper_shares_the_place_of_what_it_wraps() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(model)
    names = StateNames([wrapped], [])
    assert names.key_of(model[0].weight) == "model/0.weight"
    assert names.module_at(ModulePlace(0, "")) is wrapped
    assert names.place_of(model) == ModulePlace(0, "")
