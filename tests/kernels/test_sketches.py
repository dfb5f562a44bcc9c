"""What two sketches tell: the norm of the difference, and the channel where it is local."""

from __future__ import annotations

import numpy as np
import torch

from roundoff.kernels import row as columns
from roundoff.kernels import summarize
from roundoff.kernels.row import difference_norms, differing_channels


def sketches(*tensors: torch.Tensor) -> np.ndarray:
    return np.stack([summarize(x)[columns.SKETCH :] for x in tensors]).astype(np.float32)


def test_names_the_channel_of_each_pair_that_differs_in_one():
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    channels = [0, 1, 500, 1023]
    changed = [x.clone() for _ in channels]
    for y, channel in zip(changed, channels, strict=True):
        y[:, channel] *= 1.05
    named, certainty = differing_channels(sketches(x, x, x, x), sketches(*changed))
    assert named.tolist() == channels
    assert (certainty > 0.9).all()


def test_is_not_sure_of_a_channel_where_all_differ():
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    _, certainty = differing_channels(sketches(x, x), sketches(1.05 * x, x + 0.01))
    assert certainty.tolist() == [0, 0]


def test_is_half_sure_where_two_channels_differ_alike():
    x = torch.zeros(1000, 8)
    y = x.clone()
    y[:, 3:5] = 1.0
    channel, certainty = differing_channels(sketches(x), sketches(y))
    assert channel[0] in (3, 4)
    assert 0.2 < certainty[0] < 0.8


def test_equal_sketches_are_no_distance_apart_and_name_no_channel():
    x = sketches(torch.randn(10, 10))
    assert difference_norms(x, x).tolist() == [0.0]
    channel, certainty = differing_channels(x, x)
    assert (np.isnan(channel[0]), certainty[0]) == (True, 0.0)


def test_takes_no_rows_and_single_ones():
    none = np.empty((0, 16))
    assert difference_norms(none, none).shape == (0,)
    one = np.arange(16.0)
    assert difference_norms(one, np.zeros(16)) == np.sqrt(np.square(one[:8]).sum())


def test_a_single_element_is_estimated_exactly():
    x = torch.zeros(100, 100)
    x[31, 41] = 5.0
    assert difference_norms(sketches(torch.zeros(100, 100)), sketches(x)).tolist() == [5.0]
