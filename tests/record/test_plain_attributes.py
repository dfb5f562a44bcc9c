"""What models hold without owning it."""

import torch
from torch import nn

from roundoff.record.structure import held_by_attributes


def test_names_layers_in_lists_and_tensors_in_dicts() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].extra = {"a": [torch.ones(1)]}
    model.layers = (nn.Linear(2, 2, bias=False),)
    assert sorted(held_by_attributes([model]).values()) == ["0.extra['a'][0]", "layers[0].weight"]


def test_leaves_out_what_the_model_owns() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.shortcut = [model[0]]
    model.weights = {"first": model[0].weight, "mean": model[1].running_mean}
    assert held_by_attributes([model]) == {}


def test_two_modules_that_hold_each_other_end() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    one.friends, other.friends = [other], [one]
    assert sorted(held_by_attributes([one, other]).values()) == [
        "friends[0].bias",
        "friends[0].bias",
        "friends[0].weight",
        "friends[0].weight",
    ]
