"""Two-dimensional convolution in fp64 as matrix products.

CPUs have fast fp64 products but no fast fp64 convolution: torch's own takes one product per sample, 2.4 s for the
convolutions of a ResNet-18 step of .39 s. Here a few samples share one product, which takes 1.0 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from roundoff.record.reference.op_call import OpCall

_NUM_COLUMN_ELEMENTS = 1 << 21


def can_convolve(call: OpCall) -> bool:
    """Return whether this module can compute the call: plain 2-d convolutions and their gradients on the CPU."""
    return (
        call.signature.name in ("convolution", "convolution_backward")
        and call.get("input").dim() == 4
        and call.get("input").device.type == "cpu"
        and call.get("input").numel() > 0
        and call.get("groups") == 1
        and not call.get("transposed")
    )


def convolve(call: OpCall) -> list[Tensor]:
    """Return what the call computes, in fp64; its tensors may have any float dtype."""
    if call.signature.name == "convolution":
        return [_forward(_Geometry.of(call), call.get("input"), call.get("weight"), call.get("bias"))]
    found = _backward(_Geometry.of(call), call)
    return [grad for grad in found if grad is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Geometry:
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    output: tuple[int, int]

    @classmethod
    def of(cls, call: OpCall) -> _Geometry:
        kernel = _pair(call.get("weight").shape[2:])
        stride, padding, dilation = (_pair(call.get(name)) for name in ("stride", "padding", "dilation"))
        rows, columns = (
            (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
            for i, size in enumerate(call.get("input").shape[2:])
        )
        return cls(kernel=kernel, stride=stride, padding=padding, dilation=dilation, output=(rows, columns))

    def pad(self, x: Tensor) -> Tensor:
        rows, columns = self.padding
        return pad(x, (columns, columns, rows, rows)) if rows or columns else x

    def columns(self, padded: Tensor) -> Tensor:
        """Return the values under the kernel, (channel, kernel row, kernel column, sample, row, column), as a view."""
        samples, channels = padded.shape[:2]
        of_sample, of_channel, of_row, of_column = padded.stride()
        return padded.as_strided(
            (channels, *self.kernel, samples, *self.output),
            (
                of_channel, of_row * self.dilation[0], of_column * self.dilation[1],
                of_sample, of_row * self.stride[0], of_column * self.stride[1],
            ),
            padded.storage_offset(),
        )  # fmt: skip

    def under(self, padded: Tensor, row: int, column: int) -> Tensor:
        """Return the values under one place of the kernel, as a view."""
        top, left = row * self.dilation[0], column * self.dilation[1]
        bottom = top + self.stride[0] * (self.output[0] - 1) + 1
        right = left + self.stride[1] * (self.output[1] - 1) + 1
        return padded[:, :, top : bottom : self.stride[0], left : right : self.stride[1]]

    def groups_of_samples(self, weight: Tensor, num_samples: int) -> Iterator[slice]:
        """Split the batch so that the columns of one part stay small."""
        per_sample = weight[0].numel() * self.output[0] * self.output[1]
        num = max(1, _NUM_COLUMN_ELEMENTS // max(1, per_sample))
        return (slice(start, start + num) for start in range(0, num_samples, num))


def _forward(geometry: _Geometry, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_out = weight.shape[0]
    matrix = weight.to(torch.float64).flatten(1)
    padded = geometry.pad(x)
    output = matrix.new_empty(num_out, x.shape[0], *geometry.output)
    scratch = matrix.new_empty(0)
    for part in geometry.groups_of_samples(weight, x.shape[0]):
        product = matrix @ _matrix(geometry.columns(padded[part]), 3, scratch)
        output[:, part] = product.view(num_out, -1, *geometry.output)
    if bias is not None:
        output += bias.to(torch.float64).view(-1, 1, 1, 1)
    return output.transpose(0, 1)


def _backward(geometry: _Geometry, call: OpCall) -> list[Tensor | None]:
    grad, x, weight = call.get("grad_output"), call.get("input"), call.get("weight")
    needs_input, needs_weight, needs_bias = call.get("output_mask")
    matrix = weight.to(torch.float64).flatten(1).t()
    padded = geometry.pad(x)
    into_x = matrix.new_zeros(padded.shape) if needs_input else None
    into_weight = matrix.new_zeros(weight.shape[0], matrix.shape[0]) if needs_weight else None
    scratch, scratch_errors = matrix.new_empty(0), matrix.new_empty(0)
    for part in geometry.groups_of_samples(weight, x.shape[0]):
        errors = _matrix(grad[part].transpose(0, 1), 1, scratch_errors)
        if into_weight is not None:
            into_weight.addmm_(errors, _matrix(geometry.columns(padded[part]), 3, scratch).t())
        if into_x is not None:
            columns = scratch.resize_(matrix.shape[0], errors.shape[1])
            _add_columns_(geometry, torch.mm(matrix, errors, out=columns), into_x[part])
    top, left = geometry.padding
    return [
        None if into_x is None else into_x[:, :, top : top + x.shape[2], left : left + x.shape[3]],
        None if into_weight is None else into_weight.view(weight.shape),
        grad.to(torch.float64).sum((0, 2, 3)) if needs_bias else None,
    ]


def _add_columns_(geometry: _Geometry, columns: Tensor, padded: Tensor) -> None:
    """Add up the columns at the places that the kernel read them from."""
    samples, channels = padded.shape[:2]
    columns = columns.view(channels, *geometry.kernel, samples, *geometry.output)
    for row in range(geometry.kernel[0]):
        for column in range(geometry.kernel[1]):
            geometry.under(padded, row, column).add_(columns[:, row, column].transpose(0, 1))


def _matrix(x: Tensor, num_row_dims: int, scratch: Tensor) -> Tensor:
    """Copy a view into an fp64 matrix whose rows are its first dimensions, in memory that is used over and over."""
    return scratch.resize_(x.shape).copy_(x).flatten(num_row_dims).flatten(0, num_row_dims - 1)


def _pair(values: Any) -> tuple[int, int]:
    first, second = values if len(values) == 2 else (values[0], values[0])
    return int(first), int(second)
