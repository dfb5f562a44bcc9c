"""Fingerprints of weights: a few numbers by which two engines' weights are compared without moving them.

A weight is rounded to bfloat16 first, so that a trainer's fp32 master weights and an engine's bf16 copies of them have
the same fingerprint. It is the number of elements, the norm, and sums with random signs: the root mean square of the
differences of two weights' sums estimates the norm of the difference of the weights (Johnson and Lindenstrauss).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Fingerprint = Sequence[float]

NUM_SUMS = 8
_WIDTH = 1024
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module|base_model\.model|base_layer)\.")
_SAME = 1e-5
"""Relative distance of equal weights: the order of additions."""
_SAME_NARROW = 0.02
"""The same where one engine rounded them to something else than bfloat16 before: twice, by other steps."""
_SMALL = 0.1
"""Training moves a weight by less than this part of its norm between versions that anyone compares."""


def fingerprint_weights(weights: Mapping[str, Tensor] | Any) -> dict[str, list[float]]:
    """Return the fingerprint of every floating-point tensor of a model, or of a mapping of names to tensors.

    Wrappers' prefixes are dropped from the names; sharded tensors are left out. Costs about one pass over them.
    """
    import torch

    named: Iterable[tuple[str, Any]] = (
        weights.items() if isinstance(weights, Mapping) else [*weights.named_parameters(), *weights.named_buffers()]
    )
    with torch.no_grad():
        return {
            _WRAPPERS.sub("", name): _fingerprint(tensor)
            for name, tensor in named
            if tensor.is_floating_point() and not hasattr(tensor, "placements")
        }


def _fingerprint(weight: Tensor) -> list[float]:
    import torch

    flat = weight.detach().to(torch.bfloat16).float().flatten()
    num_rows = -(-flat.numel() // _WIDTH)
    padded = torch.nn.functional.pad(flat, (0, num_rows * _WIDTH - flat.numel())).view(num_rows, _WIDTH)
    columns = torch.from_numpy(_signs(0, _WIDTH)).to(flat.device)
    rows = torch.from_numpy(_signs(1, num_rows)).to(flat.device)
    sums = ((padded @ columns) * rows).double().cpu().sum(dim=0)
    norm = float(flat.norm())
    return [float(flat.numel()), float(f"{norm:.9g}"), *(float(f"{x:.9g}") for x in sums.tolist())]


def _signs(seed: int, num: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.Generator(np.random.PCG64(seed)).choice(np.array([-1.0, 1.0], np.float32), size=(num, NUM_SUMS))


def weight_distance(reference: Fingerprint, candidate: Fingerprint) -> float:
    """Estimate the norm of the difference of two weights, relative to the larger one; infinite if sizes differ."""
    if len(reference) != len(candidate) or len(reference) < 3 or reference[0] != candidate[0]:
        return math.inf
    norm = max(reference[1], candidate[1])
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(reference[2:], candidate[2:], strict=True)))
    return 0.0 if norm == 0 else difference / math.sqrt(len(reference) - 2) / norm


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDifferences:
    """How the weights of two engines differ."""

    num_common: int
    moved: tuple[tuple[str, float], ...]
    """Weights a little apart, as training moves them, with their relative distance."""
    wrong: tuple[tuple[str, float], ...]
    """Weights far apart: converted wrongly."""
    missing: tuple[str, ...]
    """Weights that only the reference has, among them adapters that were not merged."""
    extra: tuple[str, ...]

    @property
    def are_same(self) -> bool:
        """Whether nothing differs beyond rounding."""
        return not (self.moved or self.wrong or self.missing)


def compare_weights(
    reference: Mapping[str, Fingerprint], candidate: Mapping[str, Fingerprint], *, is_narrow: bool
) -> WeightDifferences:
    """Compare fingerprints by name.

    Args:
        reference: by name.
        candidate: by name.
        is_narrow: whether an engine rounded its weights to another format than bfloat16 and fp32.
    """
    same = _SAME_NARROW if is_narrow else _SAME
    common = {name: weight_distance(reference[name], candidate[name]) for name in reference if name in candidate}
    adapters = [name for name in reference if "lora_" in name and name not in candidate]
    adapted = {name.partition(".lora_")[0] for name in adapters}
    merged = {name for name, distance in common.items() if name.rpartition(".")[0] in adapted and distance > same}
    unmerged = [name for name in adapters if f"{name.partition('.lora_')[0]}.weight" not in merged]
    apart = sorted(((n, d) for n, d in common.items() if d > same and n not in merged), key=lambda pair: -pair[1])
    return WeightDifferences(
        num_common=len(common),
        moved=tuple(pair for pair in apart if pair[1] <= _SMALL),
        wrong=tuple(pair for pair in apart if pair[1] > _SMALL),
        missing=(*unmerged, *(name for name in reference if name not in candidate and name not in adapters)),
        extra=tuple(name for name in candidate if name not in reference),
    )


def describe_wrong(reference: Fingerprint, candidate: Fingerprint) -> str:
    """Say what seems to have happened to a weight that was converted wrongly."""
    if reference[0] != candidate[0]:
        return f"it has {candidate[0]:.0f} elements, not {reference[0]:.0f}"
    if candidate[1] == 0:
        return "it is all 0"
    factor = candidate[1] / reference[1] if reference[1] else math.inf
    if abs(factor - 1) < 1e-4:
        return "it has the same norm: its elements are in another order, as after a transposition"
    scaled = [x * factor for x in reference[2:]]
    if math.dist(scaled, candidate[2:]) < 1e-3 * max(abs(x) for x in candidate[2:]):
        return f"it is {factor:.4g} times as large"
    return f"its norm is {candidate[1]:.4g}, not {reference[1]:.4g}"
