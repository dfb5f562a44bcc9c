"""The distance between the result of an op and the exact one, in ulps of the result's format."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from roundoff.record.reference.chunks import CHUNK, in_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class IntroducedError:
    """What one op added to the error of one output, in units of the output format's eps.

    The numbers stay on the op's device until they are read; read them after the step, so that nothing waits.
    """

    worst: Tensor
    mean_square: Tensor

    @property
    def max_ulps(self) -> float:
        """Return the largest error of any element; infinite where the output is not finite and should be."""
        return float(self.worst)

    @property
    def rms_ulps(self) -> float:
        """Return the root of the mean squared error."""
        return math.sqrt(float(self.mean_square))


class ErrorTally:
    """Collects the error of one output, part by part.

    An error is counted in units of `scale * eps`, at least the smallest subnormal, so that underflow counts as the
    rounding it is; in fp32 and bf16 at least the smallest normal number, below which many kernels return 0. Overflow is
    not rounding: an infinity of the right sign, where the reference is beyond the format's largest number, counts 0, as
    do two NaNs; 8-bit formats may have NaN or their largest number there. Any other disagreement about being finite
    counts as infinite.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        self._eps = info.eps
        has_wide_range = info.smallest_normal <= torch.finfo(torch.float32).smallest_normal
        self._smallest_scale = info.smallest_normal / (info.eps if has_wide_range else 1)
        self._largest = info.max * (1 - 4 * info.eps)
        self._saturated = info.max if dtype.itemsize == 1 else math.inf
        self._extremes: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._numel = 0

    def add(self, out: Tensor, reference: Tensor, scale: Tensor | None = None) -> None:
        """Count the elements of `out`; without `scale` an element's scale is the size of its reference."""
        if out.shape != reference.shape:
            raise ValueError(f"the reference has shape {tuple(reference.shape)}, the output {tuple(out.shape)}")
        self._numel += out.numel()
        if out.numel() <= CHUNK:
            self._add(out, reference, scale)
            return
        for part in in_chunks([out, reference] if scale is None else [out, reference, scale], out.shape):
            self._add(*part)

    def ulps_of_each(self, out: Tensor, reference: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return the error of each element, without counting it."""
        size = reference.abs() if scale is None else scale
        return self._carefully(out.to(reference), reference, size).div_(self._eps)

    def result(self) -> IntroducedError | None:
        """Return what was collected, or None where nothing was."""
        if not self._numel:
            return None
        return IntroducedError(
            worst=torch.stack(self._extremes).abs_().amax() / self._eps,
            mean_square=(torch.stack(self._norms) / self._eps).square_().sum() / self._numel,
        )

    def _add(self, out: Tensor, reference: Tensor, scale: Tensor | None = None) -> None:
        reference = reference.to(torch.float64)
        out = out.to(reference.device, out.dtype if out.element_size() > 1 else torch.float32)
        size = reference.abs() if scale is None else scale
        errors = torch.sub(reference, out).div_(size.clamp(min=self._smallest_scale))
        norm = torch.linalg.vector_norm(errors)
        if out.device.type != "cpu" or math.isfinite(self._saturated) or not math.isfinite(norm):
            errors = self._carefully(out.to(reference), reference, size)
            norm = torch.linalg.vector_norm(errors)
        self._extremes += torch.aminmax(errors)
        self._norms.append(norm)

    def _carefully(self, out: Tensor, reference: Tensor, scale: Tensor) -> Tensor:
        """Return the errors, 0 where both sides agree about not being finite, infinite where they do not."""
        scale = torch.where(torch.isfinite(scale), scale, reference.abs()).clamp_(min=self._smallest_scale)
        errors = (reference - out).abs_().div_(scale)
        errors = torch.where(torch.isfinite(out) & torch.isfinite(reference), errors, math.inf)
        overflowed = (out.abs() >= self._saturated) & (out.sign() == reference.sign())
        if math.isfinite(self._saturated):
            overflowed |= torch.isnan(out)
        agreed = (overflowed & (reference.abs() > self._largest)) | (torch.isnan(out) & torch.isnan(reference))
        return errors.masked_fill_(agreed, 0)
