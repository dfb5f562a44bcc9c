"""A text file as windows of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from roundoff.errors import DataError
from roundoff.train.data.batch import IGNORED, PADDING, Batch, Draw

VOCABULARY = 256
_TRAIN_SHARE = 0.9


class Text:
    """Consecutive windows of a text; the target of each byte is the next byte."""

    def __init__(self, text: Tensor, *, context: int) -> None:
        self._text, self._context = text, context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, draw: Draw) -> Batch:
        indices = torch.tensor(draw.indices)
        starts = indices.clamp(min=0) * self._context
        windows = self._text[starts[:, None] + torch.arange(self._context + 1)].to(torch.int64)
        targets = windows[:, 1:].masked_fill((indices == PADDING)[:, None], IGNORED)
        return Batch(windows[:, :-1].contiguous(), targets)


def read_text(path: Path, *, context: int) -> tuple[Text, Text]:
    """Return the first nine tenths of a file for training and the last tenth for evaluation."""
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error
    text = torch.from_numpy(data)
    cut = int(len(text) * _TRAIN_SHARE)
    train, test = Text(text[:cut], context=context), Text(text[cut:], context=context)
    if not len(test):
        raise DataError.explain(
            f"'{path}' is too short.",
            why=f"its last tenth, {len(text) - cut} bytes, does not fill one window of {context} + 1.",
            fix="use a longer text, or a smaller --context.",
        )
    return train, test
