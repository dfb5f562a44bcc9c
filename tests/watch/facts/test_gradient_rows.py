"""Which rows of weights have had no gradient in the first steps."""

from __future__ import annotations

import torch
from torch import nn

from roundoff.kernels.host_copies import read_now
from roundoff.record.loop.sites import Sites
from roundoff.runs import GradientRowsProbe, RowsWithoutGradient
from roundoff.watch.facts.gradient_rows import GradientRows


def test_rows_without_a_gradient_are_written_after_some_steps() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    sites = Sites()
    sites.of_module(model, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, seen = GradientRows(sites), []
    for step in range(12):
        optimizer.zero_grad()
        hidden = model[1](model[0](torch.randn(4, 3)))
        model[2](hidden * (torch.arange(8) < 6)).sum().backward()
        rows.gradients_ready(step, optimizer)
        seen.append(read_now(rows.step_ended(step)))
    assert [probe is not None for probe in seen].count(True) == 2
    found = seen[9]
    assert isinstance(found, GradientRowsProbe)
    assert found.num_steps == 10
    assert [(weight.num_rows, weight.rows) for weight in found.weights] == [(8, ((6, 8),))]
    assert isinstance(found.weights[0], RowsWithoutGradient)
