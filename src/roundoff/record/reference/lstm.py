"""One LSTM layer and its gradient in fp64: the fused CPU kernel has no fp64 version.

The gradient is taken at states computed in fp64, not at those the kernel saved: a small part of the
forward's rounding error is counted as the gradient's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roundoff.record.reference.op_call import OpCall

_LSTM = 2


def can_unroll(call: OpCall) -> bool:
    """Say whether this module can compute the call: an LSTM layer over whole sequences, forward or backward."""
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
