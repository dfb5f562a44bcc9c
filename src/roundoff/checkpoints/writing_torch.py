"""Writes what `torch.load` reads: a state dict, or one beside an optimizer's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from roundoff.checkpoints.checkpoint import StoredTensor

_STATE = re.compile(r"optimizer\.state\.(?P<number>\d+)\.(?P<slot>\w+)")


def write_torch(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write a state dict; with an optimizer's state, {"model": ..., "optimizer": {"state": ...}}.

    All tensors are in memory at once: PyTorch writes them so.
    """
    model: dict[str, Any] = {}
    state: dict[int, dict[str, Any]] = {}
    for stored in tensors:
        # A view into a mapped file would be saved with all of that file.
        tensor = stored.read().clone(memory_format=torch.contiguous_format)
        if found := _STATE.fullmatch(stored.entry.name):
            state.setdefault(int(found["number"]), {})[found["slot"]] = tensor
        else:
            model[stored.entry.name] = tensor
    torch.save({"model": model, "optimizer": {"state": state}} if state else model, path)
