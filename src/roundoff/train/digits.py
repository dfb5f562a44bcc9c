"""1,797 handwritten digits of 8 by 8 pixels, shipped with the package so that demo and tests need no download.

They are the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0; here in the order and values of scikit-learn's
`load_digits`, stored as bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

_FILE = Path(__file__).with_name("digits.npz")
_LARGEST_PIXEL = 16


def load_digits() -> tuple[Tensor, Tensor]:
    """Return all images, float32 in [0, 1] of shape (1797, 1, 8, 8), and their labels, int64.

    Pixels are multiples of 1/16, so every image is exact in any format with at least three mantissa bits.

    >>> images, labels = load_digits()
    >>> labels[:5].tolist(), images[0, 0, 0, :4].tolist()
    ([0, 1, 2, 3, 4], [0.0, 0.0, 0.3125, 0.8125])
    """
    with np.load(_FILE) as stored:
        images, labels = stored["images"], stored["labels"]
    pixels = torch.from_numpy(images).to(torch.float32).div_(_LARGEST_PIXEL)
    return pixels.unsqueeze(1), torch.from_numpy(labels).to(torch.int64)


def train_test(*, seed: int = 0, num_test: int = 360) -> tuple[TensorDataset, TensorDataset]:
    """Split the digits randomly into a training set and a test set of `num_test`, reproducibly for each seed."""
    images, labels = load_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:num_test], order[num_test:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])
