"""Two compared sets of saved tensors: the first that differs, what is before it, and what has no counterpart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.compare.tensors.tensor_comparison import JudgedPair, TensorsComparison, TensorVerdict
from roundoff.compare.tensors.tensor_distance import TensorDistance
from roundoff.diagnose.wording import format_of, format_short
from roundoff.report.comparisons.comparison_report import ComparisonReport, pair_cells
from roundoff.report.parts import Cell, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import JsonValue, object_of
from roundoff.words import join_names, plural

MAX_LINES = 8
"""At most this many pairs that differ get a line of their own."""

HEADER = (
    "verdict", "reference", "candidate", "shape", "dtype", "paired by",
    "relative", "ulp", "max abs", "cosine", "at", "channel", "not finite",
)  # fmt: skip
WORDS = frozenset({"verdict", "reference", "candidate", "shape", "dtype", "paired by", "at", "not finite"})
"""Columns that hold words."""
ON_CONSOLE = ("verdict", "reference", "candidate", "shape", "relative", "ulp", "max abs", "at", "channel")
"""Columns that fit on a screen."""
FINE = frozenset({"equal", "explained"})


@dataclass(frozen=True)
class ComparedTensors(ComparisonReport):
    """A comparison of two folders of tensors."""

    comparison: TensorsComparison

    @property
    def title(self) -> str:
        """The heading of the page."""
        return "Saved tensors"

    def parts(self) -> list[Part]:
        """Return the first tensor that differs, what is before it, and what has no counterpart."""
        return [Sentence(tensors_sentence(self.comparison)), *(Note(text) for text in _further(self.comparison))]

    def tables(self) -> list[TablePart]:
        """Return every pair of tensors, and those without a counterpart."""
        columns = [
            TableColumn(name=name, is_number=name not in WORDS, is_on_console=name in ON_CONSOLE)
            for name in ("#", *HEADER)
        ]
        rows = [_table_row(number, row) for number, row in enumerate(tensors_rows(self.comparison))]
        return [TablePart(title="Tensors", columns=columns, rows=rows, noun="tensors")]

    def csv_rows(self) -> list[Sequence[object]]:
        """Return every pair with exact numbers, the header first."""
        return [HEADER, *tensors_rows(self.comparison, exact=True)]

    def about(self) -> Mapping[str, str]:
        """Return what was compared."""
        return {"reference": self.comparison.reference, "candidate": self.comparison.candidate}

    def to_object(self) -> Mapping[str, JsonValue]:
        """Return the comparison as a JSON object."""
        found = self.comparison
        return {
            "sentence": tensors_sentence(found),
            "reference": found.reference,
            "candidate": found.candidate,
            "differs": found.differs,
            "first": None if found.first is None else found.first.reference,
            "pairs": list(map(_pair, found.pairs)),
            "only_reference": list(map(_tensor, found.only_reference)),
            "only_candidate": list(map(_tensor, found.only_candidate)),
        }


def tensors_sentence(found: TensorsComparison) -> str:
    """Say in one sentence which tensor differs first, or that none does."""
    first = found.first
    if first is None:
        return f"{_all_agree(found)}{_but_unpaired(found)}."
    name = _names(first)
    if first.distance is None:
        reference, candidate = map(_shape, first.shapes)
        return f"{name} is the first that differs: its shape is {candidate} instead of {reference}."
    return f"{name} is the first that differs: {_how_far(first, first.distance)}."


def tensors_rows(found: TensorsComparison, *, exact: bool = False) -> list[tuple[str, ...]]:
    """Return everything as lines of cells, under `HEADER`; numbers have few digits unless they are to be `exact`."""
    rows = [_row(pair, repr if exact else format_short) for pair in found.pairs]
    empty = ("",) * (len(HEADER) - 5)
    rows += [("only reference", printable(x.name), "", _shape(x.shape), x.dtype, *empty) for x in found.only_reference]
    rows += [("only candidate", "", printable(x.name), _shape(x.shape), x.dtype, *empty) for x in found.only_candidate]
    return rows


def printable(name: str) -> str:
    """Return a name without control characters, which file names may contain and terminals obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _row(pair: JudgedPair, number: Callable[[float], str]) -> tuple[str, ...]:
    shapes = _shape(pair.shapes[0]) if pair.shapes[0] == pair.shapes[1] else " ".join(map(_shape, pair.shapes))
    dtypes = pair.dtypes[0] if pair.dtypes[0] == pair.dtypes[1] else " ".join(pair.dtypes)
    head = (pair.verdict.value, printable(pair.reference), printable(pair.candidate), shapes, dtypes, pair.by)
    far = pair.distance
    if far is None:
        return (*head, "", "", "", "", "", "", "")
    bad = "" if not any(far.num_nonfinite) else f"{far.num_nonfinite[0]} {far.num_nonfinite[1]}"
    if far.is_equal:
        return (*head, "0", "0", "0", "", "", "", bad)
    channel = "" if far.channel is None else str(far.channel)
    numbers = number(far.relative), number(far.ulps), number(far.max_abs), f"{far.cosine:.6f}"
    return (*head, *numbers, _place(far.position), channel, bad)


def _all_agree(found: TensorsComparison) -> str:
    num, equal, largest = len(found.pairs), len(found.of_verdict(TensorVerdict.EQUAL)), found.largest
    all_of_them = "The only pair agrees" if num == 1 else f"All {num} pairs agree"
    if largest is None or largest.distance is None:
        return f"{all_of_them} bit for bit"
    far = largest.distance
    some = f"{equal} bit for bit, {num - equal} " if equal else ""
    most = f"at most {format_short(far.ulps)} ulp ({format_of(far.unit)}) at {_names(largest)}"
    return f"{all_of_them}: {some}within what their formats explain, {most}"


def _but_unpaired(found: TensorsComparison) -> str:
    sides = ((found.only_reference, "reference"), (found.only_candidate, "candidate"))
    parts = [f"{plural(len(left), 'tensor')} of the {side}" for left, side in sides if left]
    num = len(found.only_reference) + len(found.only_candidate)
    return f", but {' and '.join(parts)} {'has' if num == 1 else 'have'} no counterpart" if parts else ""


def _how_far(pair: JudgedPair, far: TensorDistance) -> str:
    if far.num_unlike:
        values = "" if far.values is None else f": {far.values[0]:g} against {far.values[1]:g}"
        are = "1 value is" if far.num_unlike == 1 else f"{far.num_unlike} values are"
        return f"{are} not finite in only one of the two, or differently, the first at {_place(far.position)}{values}"
    num = pair.shapes[0][1 if len(pair.shapes[0]) >= 4 else -1] if pair.shapes[0] else 1
    local = "" if far.channel is None else f", nearly all of it in channel {far.channel} of {num}"
    where = f"largest {format_short(far.max_abs)}" + (f" at {_place(far.position)}" if far.position else "")
    values = "" if far.values is None else f" ({far.values[0]:g} against {far.values[1]:g})"
    return f"{_error(far)}, {where}{values}{local}"


def _error(far: TensorDistance) -> str:
    if far.ulps == float("inf"):
        return f"{plural(far.num_different, 'value')} differ{'s' if far.num_different == 1 else ''}"
    return f"relative error {format_short(far.relative)}, {format_short(far.ulps)} ulp of {format_of(far.unit)}"


def _further(found: TensorsComparison) -> Iterator[str]:
    """Yield what else there is to know."""
    first = found.first
    if first is not None:
        place = found.pairs.index(first)
        yield _before(found.pairs[:place])
        later = [pair for pair in found.pairs[place + 1 :] if pair.is_mismatch]
        if later:
            worst = f": {join_names([_names(pair) for pair in later])}"
            yield f"{plural(len(later), 'later pair')} differ{'s' if len(later) == 1 else ''} too{worst}"
        for pair in [pair for pair in later if pair.distance is None][:MAX_LINES]:
            yield f"{_names(pair)}: shape {_shape(pair.shapes[1])} instead of {_shape(pair.shapes[0])}"
    for side, left in ("REF", found.only_reference), ("CAND", found.only_candidate):
        if left:
            names = [f"{printable(tensor.name)} {_shape(tensor.shape)}" for tensor in left]
            yield f"only in {side}: {join_names(names, at_most=MAX_LINES)}"
    by_order = [pair for pair in found.pairs if pair.by == "order"]
    if by_order:
        rest = "rests" if len(by_order) == 1 else "rest"
        yield f"{plural(len(by_order), 'pair')} {rest} on order and shape alone: --map FILE decides"


def _before(pairs: Sequence[JudgedPair]) -> str:
    if not pairs:
        return "it is the first of all"
    equal = sum(pair.verdict is TensorVerdict.EQUAL for pair in pairs)
    if equal == len(pairs):
        return f"{plural(len(pairs), 'pair')} before it {'is' if len(pairs) == 1 else 'are'} equal bit for bit"
    most = max(pair.distance.ulps for pair in pairs if pair.distance)
    some = f": {equal} of them bit for bit, the others" if equal else ""
    agree = "agrees" if len(pairs) == 1 else "agree"
    return f"{plural(len(pairs), 'pair')} before it {agree}{some} within {format_short(most)} ulp"


def _names(pair: JudgedPair) -> str:
    reference, candidate = printable(pair.reference), printable(pair.candidate)
    return reference if reference == candidate else f"{reference} = {candidate}"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _place(position: Sequence[int] | None) -> str:
    return "" if position is None else f"[{', '.join(map(str, position))}]"


def _table_row(number: int, row: tuple[str, ...]) -> TableRow:
    cells = [Cell(shown=str(number), value=float(number))]
    cells += pair_cells(HEADER, row, words=WORDS)
    return TableRow(cells=cells, mark=None if row[0] in FINE else "bad")


def _pair(pair: JudgedPair) -> Mapping[str, JsonValue]:
    return {
        "reference": pair.reference,
        "candidate": pair.candidate,
        "paired_by": pair.by,
        "verdict": pair.verdict.value,
        "shapes": [list(shape) for shape in pair.shapes],
        "dtypes": list(pair.dtypes),
        **({} if pair.distance is None else object_of(pair.distance)),
    }


def _tensor(tensor: StoredTensor) -> Mapping[str, JsonValue]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
