"""Exponent histograms in a recording: of every result, and of nothing else."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from roundoff.kernels import histogram
from roundoff.record import recording
from roundoff.record.ops.rows import MAX_ELEMENTS, Histograms, sample_slices
from roundoff.runs import Event, Run


def recorded(folder: Path, *, histograms: bool = True) -> list[Event]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, to=folder, steps=0, inputs=True, histograms=histograms):
        model(torch.full((4, 3), 5.0)).square().sum().backward()
        optimizer.step()
    return list(Run.open(folder).iter_events())


def test_every_result_has_one_and_what_goes_into_an_op_has_none(tmp_path: Path):
    events = recorded(tmp_path / "a")
    for event in events:
        is_result = event.output.startswith("output") and "float" in event.dtype
        assert (event.histogram is not None) == is_result, event
        if event.histogram is not None:
            assert event.histogram.sum() == event.num_elements - event.num_zero


def test_it_is_the_histogram_of_the_tensor(tmp_path: Path):
    (given,) = (event for event in recorded(tmp_path / "a") if event.op == "input")
    assert given.histogram is not None
    assert given.histogram.tolist() == histogram(torch.full((4, 3), 5.0)).tolist()
    assert given.histogram[42] == 12  # 5 lies between 4 and 8


def test_there_is_none_unless_requested(tmp_path: Path):
    assert {event.histogram_bytes for event in recorded(tmp_path / "a", histograms=False)} == {None}


def test_of_a_large_tensor_slices_of_its_longest_dimension_are_counted():
    x = torch.ones(3, 2**18, 2)
    part = sample_slices(x)
    assert part.shape[0::2] == (3, 2)
    assert MAX_ELEMENTS / 2 < part.numel() <= MAX_ELEMENTS
    assert 0 < sample_slices(torch.ones(1).expand(1000, 1000, 1000)).numel() <= MAX_ELEMENTS
    assert sample_slices(torch.ones(4, 5)).shape == (4, 5)
    counted = Histograms()
    counted.add(x, 1)
    column = counted.column(3)
    assert column is not None
    assert np.ma.getmaskarray(column)[:, 0].tolist() == [True, False, True]
    assert column[1, 40] == part.numel()
