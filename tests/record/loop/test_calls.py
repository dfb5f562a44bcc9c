"""What is written down about a call of the loop is plain."""

import torch
from torch import nn

from roundoff.record.loop.calls import detail_to_json, learning_rates


def test_tensors_of_one_number_become_it_and_larger_ones_nothing():
    detail = {"norm": torch.tensor([2.5], requires_grad=True), "mask": torch.zeros(3), "name": "cosine", "flag": True}
    assert detail_to_json(detail) == {"norm": 2.5, "mask": None, "name": "cosine", "flag": True}


def test_tuples_become_lists_and_are_looked_into():
    assert detail_to_json({"lr": (0.1, [torch.tensor(3), None])}) == {"lr": [0.1, [3.0, None]]}


def test_every_group_that_has_a_learning_rate_gives_it():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": torch.tensor(0.5)}, {"params": [model.bias]}], lr=0.1)
    assert learning_rates(optimizer) == [0.5, 0.1]
    optimizer.param_groups[0]["lr"] = None
    assert learning_rates(optimizer) == [0.1]
    assert learning_rates(None) == []
