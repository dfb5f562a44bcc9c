"""The tables of a run: their columns, what each means, and how each is kept on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

ColumnType: TypeAlias = Literal[
    "int16",
    "int32",
    "int64",
    "uint64",
    "float32",
    "float64",
    "string",
    "fixed_size_binary(64)",
    "fixed_size_binary(128)",
]

SKETCH_LENGTH = 16
"""float32 numbers in a sketch: eight random-sign sums, then their channel-weighted twins."""

HISTOGRAM_LENGTH = 64
"""uint16 counts in an exponent histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: ColumnType
    meaning: str
    nullable: bool = False

    @property
    def num_bytes(self) -> int | None:
        """How many bytes each value has, where it is bytes."""
        return int(self.type.partition("(")[2][:-1]) if self.type.startswith("fixed") else None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """What an array of the values has; None for texts."""
        if self.type == "string":
            return None
        return np.dtype(self.type if self.num_bytes is None else f"V{self.num_bytes}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a run; its name is the folder that its parts lie in."""

    name: str
    columns: tuple[Column, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)


EVENTS = Table(
    name="events",
    columns=(
        Column(name="step", type="int32", meaning="the step, counted from 0"),
        Column(name="microbatch", type="int16", meaning="the nth backward inside the step"),
        Column(name="phase", type="string", meaning="`forward`, `backward`, `optimizer` or `eval`"),
        Column(name="site", type="string", meaning="where in the model, `blocks.3.mlp`; `<loop>` outside any module"),
        Column(
            name="op",
            type="string",
            meaning="`aten.addmm`; or `input`, `parameter`, `gradient` for a tensor that is not an op's output",
        ),
        Column(name="nth", type="int32", meaning="the nth call of that op in that site, phase and microbatch"),
        Column(name="output", type="string", meaning="which tensor of the call: `output0`, `input1`"),
        Column(name="order", type="int32", meaning="position within the step, for timelines"),
        Column(name="parameter", type="string", nullable=True, meaning="the parameter's name, where it is about one"),
        Column(name="source", type="string", nullable=True, meaning="the line that called the op, `model.py:41`"),
        Column(name="dtype", type="string", meaning="`float32`, `bfloat16`, ... as torch names it"),
        Column(name="shape", type="string", meaning="`8x128x256`; empty for a scalar"),
        Column(name="device", type="string", meaning="`cpu`, `cuda:0`, ..."),
        Column(name="num_elements", type="int64", meaning="how many numbers the tensor holds"),
        Column(name="min", type="float64", meaning="smallest finite element; NaN if there is none"),
        Column(name="max", type="float64", meaning="largest finite element; NaN if there is none"),
        Column(name="mean", type="float64", meaning="mean of the finite elements; NaN if there is none"),
        Column(name="sum_abs", type="float64", meaning="sum of the finite elements' absolute values"),
        Column(name="l2", type="float64", meaning="root of the sum of the finite elements' squares"),
        Column(name="num_nan", type="int64", meaning="how many elements are NaN"),
        Column(name="num_posinf", type="int64", meaning="how many are +infinity"),
        Column(name="num_neginf", type="int64", meaning="how many are -infinity"),
        Column(name="num_zero", type="int64", meaning="how many are +0 or -0"),
        Column(name="num_subnormal", type="int64", meaning="how many are subnormal in the tensor's own dtype"),
        Column(name="hash", type="uint64", meaning="position-weighted hash of the bits; equal on every device"),
        Column(
            name="sketch",
            type="fixed_size_binary(64)",
            nullable=True,
            meaning="16 little-endian float32: eight random-sign sums, then their channel-weighted twins",
        ),
        Column(
            name="histogram",
            type="fixed_size_binary(128)",
            nullable=True,
            meaning="64 little-endian uint16: finite elements other than 0 by power of 2; bucket 40 begins at 1; "
            "of a large tensor some slices",
        ),
        Column(
            name="introduced_ulps",
            type="float32",
            nullable=True,
            meaning="largest error the op adds, given its own inputs, in units of its format's eps",
        ),
        Column(name="introduced_rms_ulps", type="float32", nullable=True, meaning="the same, root mean square"),
    ),
)

PARAMETERS = Table(
    name="parameters",
    columns=(
        Column(name="step", type="int32", meaning="the step, counted from 0"),
        Column(name="parameter", type="string", meaning="the parameter's name, `blocks.3.mlp.weight`"),
        Column(name="site", type="string", meaning="the module that owns it, `blocks.3.mlp`"),
        Column(name="num_elements", type="int64", meaning="how many numbers it holds"),
        Column(name="l2", type="float64", meaning="norm of the parameter"),
        Column(name="absmax", type="float64", meaning="its largest absolute value"),
        Column(name="grad_l2", type="float64", nullable=True, meaning="norm of its gradient; null without one"),
        Column(name="grad_absmax", type="float64", nullable=True, meaning="largest absolute value of its gradient"),
        Column(name="grad_zero_share", type="float64", nullable=True, meaning="share of gradient elements that are 0"),
        Column(
            name="grad_subnormal_share",
            type="float64",
            nullable=True,
            meaning="share of gradient elements that are subnormal in their own dtype",
        ),
        Column(
            name="changed_fraction",
            type="float64",
            nullable=True,
            meaning="share of elements that the optimizer changed, among those with a gradient other than 0",
        ),
        Column(name="update_l2", type="float64", nullable=True, meaning="norm of the change the optimizer made"),
    ),
)

HASHES = Table(
    name="hashes",
    columns=(
        Column(name="step", type="int32", meaning="the step, counted from 0"),
        Column(name="microbatch", type="int16", meaning="the nth backward inside the step"),
        Column(
            name="kind",
            type="string",
            meaning="`input`, `parameter`, `gradient`, `clipped` (after clipping), `buffer`, `sample`, "
            "`eval-sample` or `batch` (what "
            "models are given in the steps after a save or load)",
        ),
        Column(name="name", type="string", meaning="the parameter's or buffer's name, or the input's place"),
        Column(name="hash", type="uint64", meaning="position-weighted hash of the bits, as in events"),
    ),
)

TABLES = (EVENTS, PARAMETERS, HASHES)
