"""The whole tensors that a run contains: where they are, a preview of one, and one as a numpy file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from roundoff.runs import JsonValue, Run, TensorFile
from roundoff.runs.files import folder as names
from roundoff.runs.files.tensor_file import TENSOR_DTYPES
from roundoff.serve.http import Refusal

CHUNK = 2**20
"""At most this many elements are in memory at once."""
NUM_FIRST = 64

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPreview:
    """Statistics of one tensor; those about magnitudes cover its finite elements."""

    dtype: str
    """The torch name."""
    shape: tuple[int, ...]
    num_elements: int
    num_bytes: int
    min: float
    max: float
    mean: float
    l2: float
    num_nan: int
    num_posinf: int
    num_neginf: int
    num_zero: int
    first: Sequence[float]
    exponents: Mapping[int, int]
    """By e: how many finite elements other than 0 have a magnitude from 2**e to below 2**(e + 1)."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return the preview as a JSON object."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "exponents"}
        return plain | {
            "shape": list(self.shape),
            "first": list(self.first),
            "exponents": {str(exponent): count for exponent, count in sorted(self.exponents.items())},
        }


def preview_tensor(file: TensorFile, key: str) -> TensorPreview:
    """Read a tensor once, in chunks. Complex numbers count by their magnitudes."""
    entry = file.entry(key)
    least, largest, total, squares = math.inf, -math.inf, 0.0, 0.0
    counts = dict.fromkeys(("num_nan", "num_posinf", "num_neginf", "num_zero"), 0)
    exponents: dict[int, int] = {}
    first: list[float] = []
    for chunk in iter_chunks(file, key):
        values = (np.abs(chunk) if np.iscomplexobj(chunk) else chunk).astype(np.float64)
        first += values[: NUM_FIRST - len(first)].tolist()
        finite = values[np.isfinite(values)]
        if finite.size:
            least, largest = min(least, float(finite.min())), max(largest, float(finite.max()))
            total += float(finite.sum())
            with np.errstate(over="ignore"):  # the norm of numbers near the largest is infinite
                squares += float(np.square(finite).sum())
        _count(values, counts)
        _add_exponents(finite, exponents)
    num_finite = math.prod(entry.shape) - counts["num_nan"] - counts["num_posinf"] - counts["num_neginf"]
    return TensorPreview(
        dtype=TENSOR_DTYPES[entry.dtype].torch,
        shape=entry.shape,
        num_elements=math.prod(entry.shape),
        num_bytes=entry.end - entry.begin,
        min=least if num_finite else math.nan,
        max=largest if num_finite else math.nan,
        mean=total / num_finite if num_finite else math.nan,
        l2=math.sqrt(squares),
        first=first,
        exponents=exponents,
        **counts,
    )


def iter_chunks(file: TensorFile, key: str) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of a tensor row by row, as numbers that numpy knows."""
    flat = file[key].reshape(-1)
    dtype = file.entry(key).dtype
    for begin in range(0, flat.size, CHUNK):
        yield decode_numbers(flat[begin : begin + CHUNK], dtype)


def decode_numbers(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return numbers for the bits of a dtype that numpy does not know, as float32, which holds them all."""
    numbers: npt.NDArray[Any] = bits
    if dtype == "BF16":
        numbers = (bits.astype("<u4") << 16).view("<f4")
    elif dtype.startswith("F8_"):
        numbers = _eight_bit_numbers(dtype)[bits]
    return numbers


@cache
def _eight_bit_numbers(dtype: str) -> npt.NDArray[np.float32]:
    import torch  # slow to import, and only needed for 8-bit floats

    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, TENSOR_DTYPES[dtype].torch))
    numbers: npt.NDArray[np.float32] = codes.to(torch.float32).numpy()
    return numbers


def _count(values: Floats, counts: dict[str, int]) -> None:
    counts["num_nan"] += int(np.isnan(values).sum())
    counts["num_posinf"] += int(np.isposinf(values).sum())
    counts["num_neginf"] += int(np.isneginf(values).sum())
    counts["num_zero"] += int((values == 0).sum())


def _add_exponents(finite: Floats, exponents: dict[int, int]) -> None:
    _, powers = np.frexp(finite[finite != 0])  # a mantissa from 0.5 to 1: the exponent is one too large
    found, counts = np.unique(powers - 1, return_counts=True)
    for exponent, count in zip(found.tolist(), counts.tolist(), strict=True):
        exponents[exponent] = exponents.get(exponent, 0) + count


_DECODED = ("BF16", "F8_")


def npy_chunks(file: TensorFile, key: str) -> Iterator[bytes]:
    """Yield the .npy file of a tensor; dtypes that numpy lacks (bfloat16, 8-bit floats) become float32."""
    entry = file.entry(key)
    dtype = "<f4" if entry.dtype.startswith(_DECODED) else TENSOR_DTYPES[entry.dtype].numpy
    header = io.BytesIO()
    fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": entry.shape}
    np.lib.format.write_array_header_1_0(header, fields)
    yield header.getvalue()
    for chunk in iter_chunks(file, key):
        yield chunk.tobytes()


def npy_name(run: str, key: str) -> str:
    """Return a file name that is valid on every system.

    >>> npy_name("train-1", "forward/0/blocks.3/aten.bmm#0:output0")
    'train-1-forward-0-blocks.3-aten.bmm-0-output0.npy'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{run}-{key}").strip("-.")[:120] + ".npy"


TensorGroupKind = Literal["step", "origin", "outside", "state", "batch"]
KINDS: tuple[TensorGroupKind, ...] = get_args(TensorGroupKind)
_TITLES: dict[TensorGroupKind, str] = {
    "step": "step {}",
    "origin": "the bad op of step {}",
    "outside": "the inputs of step {}",
    "state": "the state before step {}",
    "batch": "batch {}",
}
_OF_REPLAYS: dict[TensorGroupKind, Callable[..., Path]] = {
    "origin": names.origin_tensors_path,
    "outside": names.replay_batch_path,
    "state": names.state_path,
}
"""The file in the folder of a replayed step, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """Tensors of one file."""

    of: TensorGroupKind
    step: int
    """For a batch, its number from 0 on."""
    rank: int

    @property
    def title(self) -> str:
        """The group in words."""
        return _TITLES[self.of].format(self.step) + (f", rank {self.rank}" if self.rank else "")

    def to_object(self) -> dict[str, JsonValue]:
        """Return the group as a JSON object."""
        return {"of": self.of, "step": self.step, "rank": self.rank, "title": self.title}


def tensor_groups(run: Run) -> list[TensorGroup]:
    """Return all groups of whole tensors of a run."""
    return list(_files(run))


def open_group(run: Run, group: TensorGroup) -> TensorFile:
    """Open the tensors of a group; raise a `Refusal` with the existing groups if there is no such group."""
    files = _files(run)
    if group not in files:
        there = ", ".join(each.title for each in list(files)[:12]) or "none"
        raise Refusal(404, f"There are no whole tensors for {group.title}.", why=f"the run contains: {there}.")
    return TensorFile(files[group])


def _files(run: Run) -> dict[TensorGroup, Path]:
    steps = {
        TensorGroup(of="step", step=step, rank=rank): path for (rank, step), path in names.tensors_path.find(run.path)
    }
    batches = {
        TensorGroup(of="batch", step=nth, rank=rank): path for (rank, nth), path in names.batch_path.find(run.path)
    }
    return steps | dict(_replayed_groups(run)) | batches


def _replayed_groups(run: Run) -> Iterator[tuple[TensorGroup, Path]]:
    for step in run.replayed_steps:
        folder = names.replay_path(run.path, step=step)
        for kind, path_of in _OF_REPLAYS.items():
            for rank in sorted(names.ranks_with_files(folder)):
                path = path_of(folder, rank=rank)
                if path.exists():
                    yield TensorGroup(of=kind, step=step, rank=rank), path
