"""What is written down about a call of the loop is plain."""

import torch
from torch import nn

from roundoff.record.loop.calls import learning_rates, read_detail, unread_detail
from roundoff.runs import ClipDetail, NoDetail, SaveDetail, SchedulerDetail


def test_tensors_of_one_number_become_it_and_larger_ones_nothing():
    norm = torch.tensor([2.5], requires_grad=True)
    detail = ClipDetail(max_norm=1.0, total_norm=norm)
    assert read_detail("clip", detail) == unread_detail(detail) == ClipDetail(max_norm=1.0, total_norm=2.5)
    assert read_detail("clip", ClipDetail(max_norm=1.0, total_norm=torch.zeros(3))).total_norm is None


def test_a_call_without_details_has_the_defaults_of_its_kind():
    assert read_detail("undone", NoDetail()) == NoDetail()
    assert read_detail("save", NoDetail()) == SaveDetail()


def test_tuples_are_looked_into():
    detail = SchedulerDetail(scheduler="cosine", initial=True, lr=(0.1, torch.tensor(3), None))
    assert read_detail("scheduler", detail) == SchedulerDetail(scheduler="cosine", initial=True, lr=(0.1, 3.0, None))


def test_every_group_that_has_a_learning_rate_gives_it():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": torch.tensor(0.5)}, {"params": [model.bias]}], lr=0.1)
    assert learning_rates(optimizer) == [0.5, 0.1]
    optimizer.param_groups[0]["lr"] = None
    assert learning_rates(optimizer) == [0.1]
    assert learning_rates(None) == []
