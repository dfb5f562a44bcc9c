"""Norms and shares of parameters, held against torch."""

import math

import pytest
import torch
from torch import nn

from roundoff.kernels.host_copies import read_now
from roundoff.record.loop.sites import Sites
from roundoff.watch.measures import ParameterMeasures, gradient_norm


def trained() -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    model(torch.randn(5, 4)).square().mean().backward()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_table_says_what_torch_says():
    model, optimizer = trained()
    with torch.no_grad():
        model.weight.grad[0] = 0.0
    before = model.weight.detach().clone()
    sites = Sites()
    sites.add_model(model)
    measures = ParameterMeasures(sites)
    measures.begin(list(model.parameters()))
    optimizer.step()
    columns, norm = read_now(measures.end(7))
    assert columns is not None
    table = columns.to_rows().to_list()
    weight = table[0]
    assert (weight["step"], weight["parameter"], weight["num_elements"]) == (7, "weight", 12)
    assert weight["l2"] == pytest.approx(float(model.weight.detach().norm()), rel=1e-6)
    assert weight["absmax"] == pytest.approx(float(model.weight.detach().abs().max()))
    assert weight["grad_l2"] == pytest.approx(float(model.weight.grad.norm()), rel=1e-6)
    assert weight["grad_zero_share"] == pytest.approx(4 / 12)
    assert weight["changed_fraction"] == 1.0
    assert weight["update_l2"] == pytest.approx(float((model.weight.detach() - before).norm()), rel=1e-6)
    assert norm == pytest.approx(math.hypot(*(row["update_l2"] for row in table)), rel=1e-9)


def test_a_parameter_without_gradient_has_no_numbers_for_it():
    model = nn.Linear(2, 2)
    measures = ParameterMeasures(Sites())
    measures.begin(list(model.parameters()))
    columns, _ = read_now(measures.end(0))
    assert columns is not None
    assert columns.to_rows().to_list()[0]["grad_l2"] is None


def test_updates_below_the_format_show_as_unchanged():
    model = nn.Linear(64, 64).half()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    measures = ParameterMeasures(Sites())
    measures.begin(list(model.parameters()))
    optimizer.step()
    columns, _ = read_now(measures.end(0))
    assert columns is not None
    assert columns.to_rows().to_list()[0]["changed_fraction"] < 0.05


def test_gradient_norm_is_that_of_clipping_and_names_the_first_bad_gradient():
    model, _ = trained()
    expected = float(nn.utils.clip_grad_norm_(model.parameters(), math.inf))
    norm, bad = read_now(gradient_norm(list(model.parameters())))
    assert (norm, bad) == (pytest.approx(expected, rel=1e-6), None)
    model.bias.grad[1] = math.nan
    assert read_now(gradient_norm(list(model.parameters())))[1] == 1


def test_a_large_half_gradient_is_not_taken_for_infinite():
    model = nn.Linear(256, 256).half()
    model.weight.grad = torch.full_like(model.weight, 6e4)
    norm, bad = read_now(gradient_norm([model.weight]))
    assert bad is None
    assert norm == pytest.approx(6e4 * 256, rel=1e-3)
