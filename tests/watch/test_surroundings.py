"""What replays put back around a model, and what they must leave alone."""

from __future__ import annotations

import torch
from torch import nn

from roundoff.watch.surroundings import undisturbed


def test_operators_that_torch_looked_up_in_the_meantime_stay(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Torch keeps bare pointers to them: one that is let go crashes the process when it is called again."""
    monkeypatch.delitem(vars(torch.ops), "quantized", raising=False)
    with undisturbed([nn.Linear(2, 2)], but=lambda x: True):
        namespace = torch.ops.quantized
    assert vars(torch.ops)["quantized"] is namespace
