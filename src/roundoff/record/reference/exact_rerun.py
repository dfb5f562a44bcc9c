"""Runs a call again more exactly: in fp64, piece by piece if the op allows it.

The fused CPU kernel of an LSTM has no fp64 version, so a layer is unrolled. Its gradient is taken at states computed in
fp64, not at those the kernel saved: a small part of the forward's rounding error is counted as the gradient's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundoff.record.reference.convolution import can_convolve, convolve
from roundoff.record.reference.op_call import PRODUCTS, OpCall, replace_tensors
from roundoff.torch_private import OpOverload

CHUNK = 1 << 16
"""Elements that fit into the cache. A temporary of a megabyte or more is allocated from new pages each time: 4 ns per
element when it was measured, while the arithmetic itself took 0.2 ns."""


def in_chunks(tensors: Sequence[Tensor], shape: Sequence[int]) -> Iterator[list[Tensor]]:
    """Yield `tensors`, broadcast to `shape`, in parts of about 65536 elements each.

    A tensor without dimensions stays as it is: ops treat it as a number.
    """
    yield from _parts([t.expand(shape) if t.dim() else t for t in tensors], tuple(shape))


def _parts(tensors: list[Tensor], shape: tuple[int, ...]) -> Iterator[list[Tensor]]:
    numel = math.prod(shape)
    if numel <= CHUNK:
        yield tensors
        return
    if len(shape) > 1 and all(t.is_contiguous() for t in tensors):
        yield from _parts([t.view(-1) if t.dim() else t for t in tensors], (numel,))
        return
    row = numel // shape[0]
    if row > CHUNK:
        for i in range(shape[0]):
            yield from _parts([t[i] if t.dim() else t for t in tensors], shape[1:])
        return
    rows = CHUNK // row
    for start in range(0, shape[0], rows):
        yield [t[start : start + rows] if t.dim() else t for t in tensors]


def has_something_to_judge(op: Any) -> bool:
    """Return whether an op computes numbers that can be compared with a more exact run."""
    if not computes_numbers(op):
        return False
    name = op.overloadpacket.__name__
    return not (_JUMPING.match(name) or _SOLVING.match(name) or op.name().endswith("_mode"))


def computes_numbers(op: Any) -> bool:
    """Return whether an op computes numbers from numbers, deterministically, and may run a second time.

    Random ops are excluded, except those that draw numbers only if their `dropout_p` is not 0.
    """
    if not isinstance(op, OpOverload) or op.is_view or op.namespace in _FOREIGN:
        return False
    name = op.overloadpacket.__name__
    if name in _CONSTANT or torch.Tag.inplace_view in op.tags or name.startswith("new_") or name.endswith("_like"):
        return False
    takes_dropout = any(argument.name == "dropout_p" for argument in op._schema.arguments)
    return torch.Tag.nondeterministic_seeded not in op.tags or takes_dropout


# fmt: off
_FOREIGN = frozenset({
    "_c10d_functional", "_dtensor", "c10d", "c10d_functional", "fsdp", "inductor", "prim", "profiler", "rpc",
    "streams", "symm_mem",
})
"""Namespaces of ops that must not run twice, or that compute nothing."""

_CONSTANT = frozenset({
    "_amp_update_scale_", "_conj", "_neg_view", "_reshape_alias", "_unsafe_view", "alias", "detach", "empty",
    "empty_strided", "fill", "fill_", "lift", "lift_fresh", "record_stream", "resize_", "set_", "zero", "zero_",
})
# fmt: on

_JUMPING = re.compile(r"floor_divide|remainder|nextafter|nan_to_num|grid_sampler|_?fake_quantize|_fused_moving_avg")
"""Discontinuous functions: a rounding error in their input can change the result by a lot; so can `div` with a mode."""
_SOLVING = re.compile(
    r"_?linalg_(?!vector_norm)|_?lu_|.*(cholesky|(?<!w)eig|svd|qrf|ormqr|triangular_solve|lstsq)"  # not weight, gelu_
)
"""Decompositions and inverses: how far apart two good ones may be depends on the matrix."""


_UNCHANGED_ARGUMENTS = frozenset({"grad_scale", "found_inf", "inv_scale"})
"""Arguments that kernels read as fp32 whatever the rest is."""
_UNDECLARED_WRITES = frozenset({"running_mean", "running_var"})
"""Arguments that batch norm updates although its schema does not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """A part of a call that can be computed alone, with the parts of the results that it gives."""

    call: OpCall
    first: int  # place of the first of its results
    outputs: Sequence[Tensor]


def pieces(call: OpCall, outputs: Sequence[Tensor]) -> Iterator[CallPiece]:
    """Split a call: foreach ops by tensor, elementwise ones into chunks; others stay whole."""
    signature = call.signature
    if signature.is_foreach and len(outputs) == len(call.args[0]):
        for place, output in enumerate(outputs):
            yield from _chunks(_entry(call, place), place, output)
    elif signature.is_pointwise and len(outputs) == 1 and not signature.is_out:
        yield from _chunks(call, 0, outputs[0])
    else:
        yield CallPiece(call=as_computed(call, len(outputs)), first=0, outputs=outputs)


def as_computed(call: OpCall, num_results: int) -> OpCall:
    """Return the call as it was computed: some convolutions compute the weight's gradient along with the bias's."""
    mask = call.get("output_mask")
    if mask is None or sum(mask) == num_results:
        return call
    return call.change(lambda name, value: [mask[0], True, *mask[2:]] if name == "output_mask" else value)


def _entry(call: OpCall, place: int) -> OpCall:
    return call.change(lambda _, value: [value[place]] if isinstance(value, (list, tuple)) else value)


def _chunks(call: OpCall, place: int, output: Tensor) -> Iterator[CallPiece]:
    if output.numel() <= CHUNK or not call.signature.is_pointwise:
        yield CallPiece(call=call, first=place, outputs=[output])
        return
    for part, *tensors in in_chunks([output, *call.tensors()], output.shape):
        yield CallPiece(call=_with_tensors(call, iter(tensors)), first=place, outputs=[part])


def _with_tensors(call: OpCall, tensors: Iterator[Tensor]) -> OpCall:
    return call.change_tensors(lambda _: next(tensors))


def run_in_fp64(call: OpCall) -> list[Tensor]:
    """Return the results of the call with every float argument made fp64; the call's own tensors stay as they are.

    Products of 16-bit numbers are exact in fp32, and their sums are off by less than a thousandth of an ulp of theirs.
    So on the CPU their matrix products are computed in fp32, in half the time, unless they overflow there.
    """
    if call.signature.name in PRODUCTS and all(map(_is_short, call.tensors())) and _fp32_is_exact():
        results = with_floats_as(call, torch.float32).run()
        if all(math.isfinite(result.sum()) for result in results):
            return results
    if call.signature.name == "embedding":
        return [
            call.get("weight")[call.get("indices")].to(torch.float64)
        ]  # converting the whole embedding table could take too much memory
    if can_convolve(call):
        return convolve(call)
    if can_unroll(call):
        return unroll(call)
    return with_floats_as(call, torch.float64).run()


def run_again(call: OpCall) -> list[Tensor]:
    """Return the results of the call in its own formats; the call's own tensors stay as they are."""
    return with_floats_as(call, None).run()


def _is_short(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_floating_point() and tensor.element_size() == 2


def _fp32_is_exact() -> bool:
    """Return whether fp32 products on the CPU are computed in fp32: the user can make torch use bf16 inside."""
    backends: Any = torch.backends
    settings = (backends, backends.mkldnn.matmul, backends.mkldnn.conv)
    requested = {setting.fp32_precision for setting in settings}
    return requested <= {"none", "ieee"}


def with_floats_as(call: OpCall, dtype: torch.dtype | None) -> OpCall:
    """Return the call with every float argument in another format, and with copies of what the op writes into."""
    known: dict[int, Tensor] = {}
    written = {*call.signature.written, *_UNDECLARED_WRITES}

    def replace(tensor: Tensor, *, copy: bool) -> Tensor:
        if id(tensor) not in known:
            target = dtype if dtype and tensor.is_floating_point() else tensor.dtype
            known[id(tensor)] = tensor.to(target, copy=copy)
        return known[id(tensor)]

    def change(name: str, value: Any) -> Any:
        if name in written and call.signature.is_out:
            return replace_tensors(value, lambda tensor: tensor.new_empty(0, dtype=dtype))
        if name in _UNCHANGED_ARGUMENTS:
            return replace_tensors(value, torch.clone)
        if dtype and name == "half_to_float":
            return False
        if dtype and isinstance(value, torch.dtype):
            return dtype if value.is_floating_point else value
        return replace_tensors(value, lambda tensor: replace(tensor, copy=name in written))

    return call.change(change)


_LSTM = 2


def can_unroll(call: OpCall) -> bool:
    """Return whether this module can compute the call: an LSTM layer over whole sequences, forward or backward."""
    names = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
    return call.signature.name in names and call.get("mode") == _LSTM and not call.get("batch_sizes")


def unroll(call: OpCall) -> list[Tensor]:
    """Return what the call computes, in fp64; the kernel's workspace is left empty."""
    layer = _Layer.of(call)
    if call.signature.name == "mkldnn_rnn_layer":
        steps = layer.steps()
        output = layer.in_time(torch.stack([step.hidden for step in steps[1:]]))
        return [output, steps[-1].hidden, steps[-1].cell, layer.hidden.new_zeros(1)]
    zeros = torch.zeros_like(layer.hidden)
    grad_output = layer.in_time(_wide(call.get("grad_output")))
    last = [zeros if call.get(name) is None else _wide(call.get(name)) for name in ("grad_hy", "grad_cy")]
    return layer.gradients(grad_output, *last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    gates: tuple[Tensor, ...]  # input, forget, candidate, output; empty before the first step
    cell: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    input: Tensor  # (time, sample, feature), in the order in which it is read
    hidden: Tensor
    cell: Tensor
    from_input: Tensor
    from_hidden: Tensor
    bias: Tensor
    is_reversed: bool

    @classmethod
    def of(cls, call: OpCall) -> _Layer:
        names = call.signature.names
        weights = [_wide(call.get(name)) for name in names if name.startswith("weight")]
        is_reversed = call.get("reverse")
        cell = call.get("cx_") if "cx_" in names else call.get("cx_tmp")
        return cls(
            input=_wide(call.get("input")).flip(0) if is_reversed else _wide(call.get("input")),
            hidden=_wide(call.get("hx_")),
            cell=_wide(cell),
            from_input=weights[0],
            from_hidden=weights[1],
            bias=weights[2] + weights[3] if call.get("has_biases") else weights[0].new_zeros(()),
            is_reversed=is_reversed,
        )

    def in_time(self, x: Tensor) -> Tensor:
        return x.flip(0) if self.is_reversed else x

    def steps(self) -> list[_Step]:
        steps = [_Step(gates=(), cell=self.cell, hidden=self.hidden)]
        for driven in self.input @ self.from_input.t() + self.bias:
            into, forget, candidate, out = (driven + steps[-1].hidden @ self.from_hidden.t()).chunk(4, dim=-1)
            gates = (into.sigmoid(), forget.sigmoid(), candidate.tanh(), out.sigmoid())
            cell = gates[1] * steps[-1].cell + gates[0] * gates[2]
            steps.append(_Step(gates=gates, cell=cell, hidden=gates[3] * cell.tanh()))
        return steps

    def gradients(self, grad_output: Tensor, grad_hidden: Tensor, grad_cell: Tensor) -> list[Tensor]:
        steps, backward = self.steps(), []
        for time in range(len(self.input) - 1, -1, -1):
            before, (into, forget, candidate, out) = steps[time], steps[time + 1].gates
            squashed = steps[time + 1].cell.tanh()
            grad_hidden = grad_hidden + grad_output[time]
            grad_cell = grad_cell + grad_hidden * out * (1 - squashed**2)
            gates = torch.cat([
                grad_cell * candidate * into * (1 - into),
                grad_cell * before.cell * forget * (1 - forget),
                grad_cell * into * (1 - candidate**2),
                grad_hidden * squashed * out * (1 - out),
            ], dim=-1)  # fmt: skip
            backward.append(gates)
            grad_hidden, grad_cell = gates @ self.from_hidden, grad_cell * forget
        gates = torch.stack(backward[::-1])
        previous = torch.stack([step.hidden for step in steps[:-1]])
        bias = gates.sum((0, 1))
        into_input = self.in_time(gates @ self.from_input)
        return [into_input, _sum(gates, self.input), _sum(gates, previous), bias, bias, grad_hidden, grad_cell]


def _sum(gates: Tensor, x: Tensor) -> Tensor:
    return gates.flatten(0, 1).t() @ x.flatten(0, 1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float64)
