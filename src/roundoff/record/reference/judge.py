"""The error that one op introduces: its result against the same op on the same inputs, run again in fp64 or on the CPU.

What was already wrong in the inputs is not counted: both sides get the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from roundoff.kernels.compiled import where_fp64_is
from roundoff.record.reference.exact_rerun import (
    CHUNK,
    CallPiece,
    has_something_to_judge,
    in_chunks,
    pieces,
    run_again,
    run_in_fp64,
)
from roundoff.record.reference.op_call import OpCall, Signature, list_tensors
from roundoff.record.reference.output_scales import scales
from roundoff.torch_private import OpOverload, aten_op


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


__all__ = ["IntroducedError", "OpJudge", "OverwrittenValues", "Reference", "ReferenceKind"]

ReferenceKind = Literal["fp64", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverwrittenValues:
    """What a call is about to overwrite, as it is before; by the identity of the tensor."""

    overwritten: dict[int, Tensor]


class OpJudge(Protocol):
    """Sees each op of a recording, before and after it runs."""

    not_judged: dict[str, str]
    """Why ops were not judged, by name."""

    def before(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See the arguments; the returned value is passed to `after`, and None skips the op."""

    def after(
        self, saved: Any, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Sequence[Tensor]
    ) -> list[IntroducedError | None] | None:
        """See the results; return the error in each of them, or None if it is unknown."""


class Reference:
    """Runs ops again, more exactly, and returns the error that each of them introduced.

    Call it below autograd, from `__torch_dispatch__`, around the op. It reads the op's tensors and writes only to
    copies of its own, and draws no random numbers.

    `not_judged` holds why an op could not be run again, by its name. Ops that have nothing to judge (views,
    comparisons, random numbers, collectives, fp64 results) are not in it.
    """

    def __init__(self, kind: ReferenceKind, *, run: Callable[[OpCall], list[Tensor]] | None = None) -> None:
        """Compare with the same op in fp64 or on the CPU, or with what `run` returns for a call."""
        self.not_judged: dict[str, str] = {}
        self._kind = kind
        self._run_otherwise = run or (run_again if kind == "cpu" else run_in_fp64)
        self._signatures: dict[Any, Signature | None] = {}

    def before(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OverwrittenValues | None:
        """Copy what the op is about to overwrite; None if it cannot be judged or has nothing to judge."""
        try:
            signature = self._signature(func)
            if signature is None:
                return None
            call = OpCall(signature=signature, args=args, kwargs=kwargs)
            tensors = call.tensors()
            if not tensors or not all(map(_is_plain, tensors)) or call.get("dropout_p") or _changes_device(call):
                return None
            return _save(call, tensors) if signature.written else _SAVED_NOTHING
        except Exception as error:
            self._give_up(func, error)
            return None

    def after(
        self,
        saved: OverwrittenValues,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: Sequence[Tensor],
    ) -> list[IntroducedError | None]:
        """Return the error the op introduced in each of its outputs; None for those that cannot be judged.

        Args:
            saved: what `before` gave for this call.
            func: the op, as it was called.
            args: its arguments.
            kwargs: its keyword arguments.
            outputs: the tensors it returned, lists flattened; or those it wrote to, where it returns nothing.
        """
        signature = self._signature(func)
        tallies = [ErrorTally(output.dtype) if self._can_judge(output) else None for output in outputs]
        if signature is None or not any(tallies):
            return [None] * len(outputs)
        call = OpCall(signature=signature, args=args, kwargs=kwargs)
        try:
            call = call.change_tensors(lambda tensor: self._home(saved.overwritten.get(id(tensor), tensor)))
            for piece in pieces(self._as_copy(call) if signature.name in _COPIES else call, outputs):
                self._judge(piece, tallies)
        except Exception as error:
            self._give_up(func, error)
            return [None] * len(outputs)
        return [tally.result() if tally else None for tally in tallies]

    def _give_up(self, func: OpOverload, error: Exception) -> None:
        self._signatures[func] = None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        self.not_judged[f"{func.namespace}.{func.overloadpacket.__name__}"] = reason

    def _judge(self, piece: CallPiece, tallies: Sequence[ErrorTally | None]) -> None:
        wanted = tallies[piece.first : piece.first + len(piece.outputs)]
        if not any(wanted):
            return
        references = self._run(piece.call)
        if len(references) != len(piece.outputs):
            raise ValueError(f"it gives {len(references)} results when run again, not {len(piece.outputs)}")
        found = scales(piece.call, references)
        for tally, output, reference, scale in zip(wanted, piece.outputs, references, found, strict=True):
            if tally is not None:
                tally.add(output, reference.to(output.dtype) if self._kind == "cpu" else reference, scale)

    def _run(self, call: OpCall) -> list[Tensor]:
        run = self._run_otherwise
        if call.signature.op.namespace == "aten":
            return run(call)
        state = torch.get_rng_state()
        try:
            return run(call)
        finally:
            if not torch.equal(state, torch.get_rng_state()):
                torch.set_rng_state(state)
                raise ValueError("it draws random numbers")

    def _as_copy(self, call: OpCall) -> OpCall:
        """Return a cast or copy as a clone of its source: in a wider format nothing else remains of it."""
        source = call.get("self")
        if "src" in call.signature.names:
            source = call.get("src").expand(source.shape) if isinstance(source, Tensor) else call.get("src")
        is_one = isinstance(source, Tensor)
        # not every torch has an op that clones a list: the product with 1 has the same numbers
        signature = self._signature(torch.ops.aten.clone.default if is_one else aten_op("_foreach_mul.Scalar"))
        assert signature is not None
        return OpCall(signature=signature, args=(source,) if is_one else (source, 1), kwargs={})

    def _home(self, tensor: Tensor) -> Tensor:
        """Return the tensor on a device that can compute with it: the CPU if requested, or if its own has no fp64."""
        return tensor.cpu() if self._kind == "cpu" else where_fp64_is(tensor)

    def _can_judge(self, output: Tensor) -> bool:
        if not output.is_floating_point() or not output.numel() or not _is_plain(output):
            return False
        return self._kind == "cpu" or output.dtype != torch.float64

    def _signature(self, func: Any) -> Signature | None:
        if func not in self._signatures:
            self._signatures[func] = Signature.of(func) if has_something_to_judge(func) else None
        return self._signatures[func]


def _is_plain(tensor: Tensor) -> bool:
    if type(tensor) not in _PLAIN and type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_complex())


def _changes_device(call: OpCall) -> bool:
    if call.signature.name not in _COPIES:
        return False
    devices = {tensor.device for tensor in call.tensors()}
    requested = call.get("device")
    return len(devices) > 1 or (requested is not None and torch.device(requested) not in devices)


def _save(call: OpCall, tensors: Sequence[Tensor]) -> OverwrittenValues | None:
    """Copy what the op both reads and overwrites, also through another tensor; None if written tensors overlap."""
    written = [tensor for name in call.signature.written for tensor in list_tensors(call.get(name))]
    storages = {tensor.untyped_storage().data_ptr() for tensor in written}
    if len(storages) < len(written) and _overlap(written):
        return None
    read = tensors
    if call.signature.is_out or call.signature.name in _COPIES:
        read = [t for name, value in call.items() if name not in call.signature.written for t in list_tensors(value)]
    return OverwrittenValues(overwritten={id(t): t.clone() for t in read if t.untyped_storage().data_ptr() in storages})


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Return whether the stretches of memory from first to last element overlap."""
    stretches = []
    for tensor in tensors:
        if tensor.numel():
            extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            stretches.append((tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()))
    stretches.sort()
    return any(end > start for (_, end), (start, _) in pairwise(stretches))


_PLAIN = (Tensor, nn.Parameter)
_SAVED_NOTHING = OverwrittenValues(overwritten={})
_COPIES = frozenset({"_to_copy", "clone", "copy"})
