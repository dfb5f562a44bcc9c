"""Two compared sets of saved tensors as a page, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from roundoff.compare.tensor_distance import TensorDistance
from roundoff.compare.tensor_files import SavedTensor
from roundoff.compare.tensors import TensorPair, TensorsComparison
from roundoff.report.markup import tag
from roundoff.report.page import facts, page, section
from roundoff.report.table import Cell, Column, TableRow, table
from roundoff.report.tensors_text import HEADER, WORDS, tensors_rows, tensors_sentence
from roundoff.runs import JsonValue

FINE = frozenset({"equal", "explained"})


def tensors_page(found: TensorsComparison) -> str:
    """Return a page with the verdict and a table of every tensor, in the order of saving."""
    columns = [Column(name="#", is_number=True), *(Column(name=name, is_number=name not in WORDS) for name in HEADER)]
    rows = [_row(number, row) for number, row in enumerate(tensors_rows(found))]
    return page(
        "Saved tensors",
        tag("p", tensors_sentence(found), class_="verdict"),
        facts({"reference": found.reference, "candidate": found.candidate}),
        section("Tensors", table(columns, rows, noun="tensors")),
    )


def tensors_object(found: TensorsComparison) -> Mapping[str, JsonValue]:
    """Return a comparison as plain JSON."""
    return {
        "sentence": tensors_sentence(found),
        "reference": found.reference,
        "candidate": found.candidate,
        "differs": found.differs,
        "first": None if found.first is None else found.first.reference,
        "pairs": [_pair(pair) for pair in found.pairs],
        "only_reference": [_tensor(tensor) for tensor in found.only_reference],
        "only_candidate": [_tensor(tensor) for tensor in found.only_candidate],
    }


def _row(number: int, row: tuple[str, ...]) -> TableRow:
    cells = [Cell(shown=str(number), value=float(number))]
    cells += [_cell(name, text) for name, text in zip(HEADER, row, strict=True)]
    return TableRow(cells=cells, mark=None if row[0] in FINE else "bad")


def _cell(name: str, text: str) -> Cell:
    if name in WORDS or not text:
        return Cell(shown=text, value=text or None)
    return Cell(shown=text, value=float(text))


def _pair(pair: TensorPair) -> Mapping[str, JsonValue]:
    return {
        "reference": pair.reference,
        "candidate": pair.candidate,
        "paired_by": pair.by,
        "verdict": pair.verdict.value,
        "shapes": [list(shape) for shape in pair.shapes],
        "dtypes": list(pair.dtypes),
        **({} if pair.distance is None else _distance(pair.distance)),
    }


def _distance(far: TensorDistance) -> Mapping[str, JsonValue]:
    return {
        "max_abs": far.max_abs,
        "relative": far.relative,
        "ulps": far.ulps,
        "unit": far.unit,
        "cosine": far.cosine,
        "position": None if far.position is None else list(far.position),
        "values": None if far.values is None else list(far.values),
        "channel": far.channel,
        "num_different": far.num_different,
        "num_nonfinite": list(far.num_nonfinite),
        "num_unlike": far.num_unlike,
    }


def _tensor(tensor: SavedTensor) -> Mapping[str, JsonValue]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
