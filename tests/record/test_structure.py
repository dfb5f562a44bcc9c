"""What a training is made of; test_collector.py sees it written by a watch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from roundoff.kernels.host_copies import read_now
from roundoff.record.loop.sites import Sites
from roundoff.record.structure import OptimizerNames, start_values, structure_of
from roundoff.runs import Structure


def described(model: nn.Module, *optimizers: torch.optim.Optimizer, **known: Any) -> Structure:
    sites = Sites()
    sites.add_model(model)
    given: dict[str, Any] = {
        "reached": (),
        "starts": {},
        "resumed": set(),
        "stepped": set(),
        "name_of": OptimizerNames().of,
        **known,
    }
    return read_now(structure_of([model], optimizers, step=3, sites=sites, **given))


def test_optimizers_of_one_class_are_numbered_from_the_second_on() -> None:
    one, two, other = (
        kind([nn.Parameter(torch.ones(1))]) for kind in (torch.optim.SGD, torch.optim.SGD, torch.optim.Adam)
    )
    names = OptimizerNames()
    assert [names.of(optimizer) for optimizer in (one, two, other, two)] == ["SGD", "SGD#2", "Adam", "SGD#2"]


def test_start_values_are_those_of_floats_that_have_memory() -> None:
    x = torch.tensor([1.0, -3.0])
    empty, whole, nowhere = torch.ones(0), torch.ones(2, dtype=torch.int64), torch.ones(2, device="meta")
    assert start_values([x, empty, whole, nowhere]) == {id(x): (-1.0, 2.0, 3.0)}


def test_an_optimizer_of_another_training_counts_only_once_it_has_stepped() -> None:
    model = nn.Linear(2, 2)
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    assert described(model, other).optimizers == ()
    (facts,) = described(model, other, stepped={other}, resumed={id(other)}).optimizers
    assert (facts.name, facts.has_state, facts.recipe) == ("SGD", True, None)


def test_parameters_that_share_memory_are_tied_to_the_first() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data)
    first, second = described(model).parameters
    assert (first.tied_to, second.tied_to) == (None, "0.weight")


@pytest.mark.parametrize(("rows", "num_distinct"), [([1, 1, 1], 1), ([1, 1, 2], 2), ([1, 2, 1], None)])
def test_equal_rows_are_counted_where_the_first_two_are_equal(rows: list[float], num_distinct: int | None) -> None:
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(rows)[:, None])
    (facts,) = described(model).parameters
    assert (facts.num_distinct_rows, facts.equal_rows) == (num_distinct, num_distinct == 1)


def test_norms_say_whether_their_statistics_are_those_of_the_start() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    model[1](torch.randn(4, 2))
    found = [module.has_start_statistics for module in described(model).modules]
    assert found == [None, True, False, None]


def test_settings_of_modules_are_short_plain_values_of_their_own() -> None:
    model = nn.Conv2d(1, 2, 3)
    model.names, model.long, model.other, model._hidden = ["a"], list(range(9)), object(), 1
    (facts,) = described(model).modules
    assert (facts.settings["kernel_size"], facts.settings["names"]) == ([3, 3], ["a"])
    assert facts.settings.keys().isdisjoint({"long", "other", "_hidden", "training"})


def test_groups_tell_their_numbers_also_those_that_are_tensors() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5), betas=(0.5, 0.75))
    ((group,),) = (facts.groups for facts in described(model, optimizer).optimizers)
    assert (group["num_parameters"], group["lr"], group["betas"]) == (2, 0.5, [0.5, 0.75])
    assert "params" not in group


def test_parameters_without_values_yet_are_left_out() -> None:
    assert described(nn.LazyLinear(2)).parameters == ()
