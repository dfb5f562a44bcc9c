"""Exponent histograms of the tensors of one step: how their magnitudes are spread over the powers of two."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundoff.kernels import histogram
from roundoff.kernels import row as at
from roundoff.kernels.summaries_torch import histogram_torch
from roundoff.record.torch_private import hidden_from_modes

MOST_ELEMENTS = 2**15
"""Of a larger tensor slices at even distances are counted: a picture needs no more, and 16 bits hold every count."""


class Histograms:
    """Counts by the place of their events; those of tensors elsewhere than on the CPU are fetched at the end."""

    def __init__(self) -> None:
        self._counts: dict[int, npt.NDArray[np.uint16]] = {}
        self._on_device: list[tuple[int, Tensor]] = []

    def add(self, x: Tensor, place: int) -> None:
        """Count the elements of a tensor of floating-point numbers; others have no exponents."""
        if not x.is_floating_point() or not x.numel():
            return
        with hidden_from_modes():
            part = sampled(x.detach())
            if part.is_cpu:
                self._counts[place] = histogram(part).astype(np.uint16)
            else:
                self._on_device.append((place, histogram_torch(part)))

    def column(self, num_rows: int) -> npt.NDArray[np.uint16] | None:
        """Return a line of counts for each event, masked where there are none; None if there are none at all."""
        self._fetch()
        if not self._counts:
            return None
        values = np.zeros((num_rows, at.NUM_HISTOGRAM_BUCKETS), dtype=np.uint16)
        missing = np.ones(values.shape, dtype=bool)
        for place, counts in self._counts.items():
            values[place], missing[place] = counts, False
        return np.ma.MaskedArray(values, mask=missing)

    def _fetch(self) -> None:
        if self._on_device:
            fetched = torch.stack([counts.to(torch.int64) for _, counts in self._on_device]).cpu().numpy()
            for (place, _), counts in zip(self._on_device, fetched, strict=True):
                self._counts[place] = counts.astype(np.uint16)
            self._on_device.clear()


def sampled(x: Tensor) -> Tensor:
    """Return a tensor that is not too large as it is, and of a large one slices of its longest dimensions.

    >>> sampled(torch.zeros(2**20, 2)).shape
    torch.Size([16384, 2])
    """
    while x.numel() > MOST_ELEMENTS:
        longest = max(range(x.dim()), key=lambda dim: x.shape[dim])
        every = min(math.ceil(x.numel() / MOST_ELEMENTS), x.shape[longest])
        x = x[(*(slice(None) for _ in range(longest)), slice(None, None, every))]
    return x
