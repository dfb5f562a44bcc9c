"""The whole tensors that a run contains: where they are, a preview of one, a page of them, and one as a numpy file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import facts, section
from roundoff.report.parts import Cell, TableColumn, TableRow, table
from roundoff.runs import JsonValue, Run, TensorFile, shape_to_text
from roundoff.runs.files import folder as names
from roundoff.serve.http import Refusal, run_link, served_page
from roundoff.tensor_header import TENSOR_DTYPES

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


MAX_ROWS = 3000
_BAR_WIDTH, _BAR_HEIGHT, _LABEL_HEIGHT = 22, 120, 18
_LABEL_EVERY = 2


def tensors_page(
    name: str,
    groups: Sequence[TensorGroup],
    *,
    chosen: TensorGroup | None,
    file: TensorFile | None,
    look: tuple[str, TensorPreview] | None,
) -> bytes:
    """Return the page: the groups, the tensors of the selected one, and a preview of the selected tensor."""
    back = tag("nav", tag("a", "← all runs", href="/"), tag("a", name, href=run_link(name)), class_="bar")
    parts = [back, _groups(name, groups, chosen)]
    if chosen is not None and look is not None:
        parts.append(_look(name, chosen, *look))
    if chosen is not None and file is not None:
        parts.append(_tensors(name, chosen, file))
    return served_page(f"Tensors of {name}", *parts)


def _groups(name: str, groups: Sequence[TensorGroup], chosen: TensorGroup | None) -> Html:
    if not groups:
        return tag("p", "This run contains no whole tensors. To record them: roundoff record --level tensors train.py")
    links = [
        tag("a", group.title, href=_link(name, group), aria_current="page" if group == chosen else None)
        for group in groups
    ]
    return tag("nav", *links, class_="groups", aria_label="steps with tensors")


def _link(run: str, group: TensorGroup, **more: str) -> str:
    return run_link(run, "tensors", of=group.of, step=group.step, rank=group.rank, **more)


def _tensors(name: str, group: TensorGroup, file: TensorFile) -> Html:
    columns = (
        TableColumn(name="tensor"),
        TableColumn(name="dtype"),
        TableColumn(name="shape"),
        TableColumn(name="bytes", is_number=True),
    )
    rows = [_tensor_row(name, group, file, key) for key in islice(file, MAX_ROWS)]
    left_out = len(file) - len(rows)
    note = [tag("p", f"{left_out} more are available from the API: /api{run_link(name)}/tensors")] if left_out else []
    return section(f"Tensors of {group.title}", table(columns, rows, noun="tensors"), *note)


def _tensor_row(name: str, group: TensorGroup, file: TensorFile, key: str) -> TableRow:
    entry = file.entry(key)
    size = entry.end - entry.begin
    cells = (
        Cell(shown=tag("a", key, href=_link(name, group, name=key) + "#look"), value=key),
        Cell(shown=TENSOR_DTYPES[entry.dtype].torch, value=entry.dtype),
        Cell(shown=shape_to_text(entry.shape) or "scalar", value=shape_to_text(entry.shape)),
        Cell(shown=f"{size:,}", value=size),
    )
    return TableRow(cells=cells)


def _look(name: str, group: TensorGroup, key: str, look: TensorPreview) -> Html:
    statistics: Mapping[str, str] = {
        "dtype": look.dtype,
        "shape": shape_to_text(look.shape) or "scalar",
        "elements": f"{look.num_elements:,}",
        "min": f"{look.min:.6g}",
        "max": f"{look.max:.6g}",
        "mean": f"{look.mean:.6g}",
        "norm": f"{look.l2:.6g}",
        "zero": f"{look.num_zero:,}",
        "NaN": f"{look.num_nan:,}",
        "+inf": f"{look.num_posinf:,}",
        "-inf": f"{look.num_neginf:,}",
    }
    query = {"of": group.of, "step": group.step, "rank": group.rank, "name": key}
    saved = tag("a", "save as .npy", href="/api" + run_link(name, "tensor.npy", **query), class_="button")
    as_json = tag("a", "JSON", href="/api" + run_link(name, "tensor", **query), class_="button")
    rest = look.num_elements - len(look.first)
    values = "  ".join(f"{value:.6g}" for value in look.first) + (f"  … {rest:,} more" if rest else "")
    body = join_html(
        facts(statistics),
        _histogram(look),
        tag("h3", "First values, row by row"),
        tag("pre", values or "none"),
        tag("p", saved, " ", as_json, class_="controls"),
    )
    return tag("section", tag("h2", key), body, id="look")


def _histogram(look: TensorPreview) -> Html:
    """Return bars: how many elements have a magnitude from each power of two to the next."""
    if not look.exponents:
        return tag("p", "There are no finite, non-zero elements.", class_="faint")
    low, high = min(look.exponents), max(look.exponents)
    most = max(look.exponents.values())
    bars = [_bar(each, look.exponents.get(each, 0), low=low, most=most) for each in range(low, high + 1)]
    words = (
        f"Elements by magnitude: the bar at {low} counts those from 2^{low} to 2^{low + 1}; the highest is {most:,}."
    )
    width, height = (high - low + 1) * _BAR_WIDTH, _BAR_HEIGHT + _LABEL_HEIGHT
    box = f"0 0 {width} {height}"
    picture = tag("svg", *bars, width=width, height=height, viewBox=box, role="img", aria_label=words)
    return tag("figure", tag("div", picture, class_="scrolling"), tag("figcaption", words), class_="exponents")


def _bar(exponent: int, count: int, *, low: int, most: int) -> Html:
    left, height = (exponent - low) * _BAR_WIDTH, round(_BAR_HEIGHT * count / most, 1)
    title = tag("title", f"2^{exponent} to 2^{exponent + 1}: {count:,}")
    bar = tag("rect", x=left, y=_BAR_HEIGHT - height, width=_BAR_WIDTH - 2, height=height)
    middle, foot = left + _BAR_WIDTH / 2 - 1, _BAR_HEIGHT + _LABEL_HEIGHT - 4
    is_labelled = (exponent - low) % _LABEL_EVERY == 0
    return tag("g", title, bar, *([tag("text", str(exponent), x=middle, y=foot)] if is_labelled else []))
