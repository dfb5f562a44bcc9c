"""Per-tensor scales of operands: from the tensor itself, or from its largest magnitudes in earlier steps."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.kernels.absmax import absmax
from roundoff.precision.recipe import OperandScaling
from roundoff.precision.steering import is_frozen

_LARGEST_SCALE: Final = 2.0**126


class OperandScales:
    """The scale that brings a tensor's largest magnitude to the format's largest number.

    `delayed` takes the largest magnitude of the last steps, which costs no pass over the tensor before it is rounded
    on hardware that finds it on the way; the first step has no history and takes its own. Nothing waits for a device.
    """

    def __init__(self, scaling: OperandScaling, *, amax_history: int) -> None:
        self._scaling = scaling
        self._length = amax_history
        self._histories: dict[str, Tensor] = {}
        self._num_followed: Counter[str] = Counter()
        self._kept: dict[str, Tensor] = {}
        """What scales from the tensor itself are frozen at."""

    def scale(self, x: Tensor, fmt: Format, *, key: str) -> Tensor | None:
        """Return what to multiply `x` with before it is rounded, or None for 1; `key` names the operand."""
        if self._scaling == "none" or x.numel() == 0:
            return None
        found = absmax(x)
        amax = found.value.float()
        frozen = is_frozen(num_steps=self._num_followed[key])
        if self._scaling == "delayed":
            amax = self._delayed(amax, key, frozen=frozen)
        elif frozen:
            amax = self._kept.setdefault(key, amax)
        if torch.is_grad_enabled() or key.endswith(".gradient"):
            self._num_followed[key] += 1
        scale = torch.where(amax > 0, fmt.largest / amax, torch.ones_like(amax)).clamp_(max=_LARGEST_SCALE)
        # Rounding would turn infinities into large numbers: a tensor that has any becomes NaN, so that it shows.
        return scale.masked_fill(found.num_nonfinite > 0, torch.nan)

    def _delayed(self, amax: Tensor, key: str, *, frozen: bool) -> Tensor:
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = torch.zeros(self._length, device=amax.device)
            frozen = False
        largest = history.max()
        if not frozen and (torch.is_grad_enabled() or key.endswith(".gradient")):
            history.copy_(torch.cat([amax.reshape(1), history[:-1]]))
        return torch.where(largest > 0, largest, amax)

    def forget(self) -> None:
        """Begin every history anew."""
        self._histories.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the histories."""
        return {"amax_histories": dict(self._histories)} if self._histories else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from histories of the same length; others begin anew."""
        for key, history in state.get("amax_histories", {}).items():
            if len(history) == self._length:
                self._histories[key] = history.clone()
