"""Two compared checkpoints: one sentence, then what differs, then what has no counterpart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.pair.pairing import UnpairedTensor
from roundoff.compare.checkpoints.checkpoint_comparison import SUSPICIOUS, CheckpointComparison
from roundoff.compare.checkpoints.compared_pair import ComparedPair, PairKind
from roundoff.diagnose.wording import format_short
from roundoff.report.comparisons.comparison_report import ComparisonReport, pair_cells
from roundoff.report.parts import Facts, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import JsonValue
from roundoff.words import join_names, plural

MAX_LINES = 8
"""At most this many pairs, and tensors without a counterpart, get a line of their own."""

HEADER = ("kind", "reference", "candidate", "shape", "dtypes", "paired by", "relative", "max abs", "cosine", "note")
WORDS = frozenset({"kind", "reference", "candidate", "shape", "dtypes", "paired by", "note"})
"""Columns that hold words."""
ON_CONSOLE = ("kind", "reference", "candidate", "shape", "relative", "max abs", "note")
"""Columns that fit on a screen."""
_LABEL_WIDTH = 13


@dataclass(frozen=True)
class ComparedCheckpoints(ComparisonReport):
    """A comparison of two checkpoints."""

    comparison: CheckpointComparison

    @property
    def title(self) -> str:
        """The heading of the page."""
        return "Two checkpoints"

    def parts(self) -> list[Part]:
        """Return the verdict, the tensors that differ, those without a counterpart, and how they were paired."""
        found = self.comparison
        suspicious = [each for each in found.of_kind(*SUSPICIOUS) if not _is_progress(each, found)]
        facts = [(each.kind.value, _describe_pair(each)) for each in suspicious[:MAX_LINES]]
        parts: list[Part] = [Sentence(checkpoint_sentence(found))]
        parts.append(Facts(facts, label_width=_LABEL_WIDTH, overflow="cut"))
        if len(suspicious) > MAX_LINES:
            parts.append(Note(f"{len(suspicious) - MAX_LINES} more: --table lists all"))
        parts.append(Facts(list(_unpaired_facts(found)), label_width=_LABEL_WIDTH, overflow="cut"))
        return [*parts, Note(_how_paired(found))]

    def tables(self) -> list[TablePart]:
        """Return every pair of tensors, and those without a counterpart."""
        bad = {kind.value for kind in SUSPICIOUS} | {"only reference", "only candidate"}
        columns = [
            TableColumn(name=name, is_number=name not in WORDS, is_on_console=name in ON_CONSOLE) for name in HEADER
        ]
        rows = [
            TableRow(
                cells=pair_cells(HEADER, row, words=WORDS),
                mark="bad" if row[0] in bad else None,
            )
            for row in checkpoint_rows(self.comparison)
        ]
        return [TablePart(title="Tensors", columns=columns, rows=rows, noun="tensors")]

    def csv_rows(self) -> list[Sequence[object]]:
        """Return every pair, the header first."""
        return [HEADER, *checkpoint_rows(self.comparison)]

    def about(self) -> dict[str, str]:
        """Return what was compared."""
        found = self.comparison
        return {
            "reference": f"{found.reference} ({found.formats[0]})",
            "candidate": f"{found.candidate} ({found.formats[1]})",
        }

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        return {"sentence": checkpoint_sentence(self.comparison), **self.comparison.to_object()}


def checkpoint_sentence(found: CheckpointComparison) -> str:
    """Say in one sentence what matters most."""
    if not found.pairs:
        return "No tensor of the reference has a counterpart in the candidate."
    worst = found.pairs[0]
    if worst.kind in (PairKind.ROUNDED, PairKind.EQUAL) and any(found.missing):
        return f"{_agreeing(found)}, but {_missing(found)}."
    if worst.kind in (PairKind.ROUNDED, PairKind.EQUAL):
        return f"{_agreeing(found)}.{_nothing_moved(found)}"
    if found.is_one_training:
        return _training(found)
    return f"{_worst(found, worst)}; {_rest(found)}."


def checkpoint_rows(found: CheckpointComparison) -> list[tuple[str, ...]]:
    """Return everything as lines of cells, under `HEADER`."""
    rows = [_row(each) for each in found.pairs]
    for side, unpaired in ("only reference", found.only_reference), ("only candidate", found.only_candidate):
        for each in unpaired:
            names = (each.name, each.nearest or "") if side == "only reference" else (each.nearest or "", each.name)
            rows.append((side, *names, _shape(each.shape), "", "", "", "", "", each.why))
    return rows


def _row(each: ComparedPair) -> tuple[str, ...]:
    far = each.distance
    dtypes = each.dtypes[0] if each.dtypes[0] == each.dtypes[1] else " ".join(each.dtypes)
    numbers = (f"{far.relative:.4g}", f"{far.largest:.4g}", f"{far.cosine:.6f}") if far else ("", "", "")
    axes = "" if each.pair.axes is None else f"axes {each.pair.axes}"
    note = "; ".join(text for text in (each.note, axes) if text)
    names = each.pair.reference, each.pair.candidate
    return (each.kind.value, *names, _shape(each.shape), dtypes, each.pair.by.value, *numbers, note)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "-"


def _agreeing(found: CheckpointComparison) -> str:
    num, equal, rounded = len(found.pairs), len(found.of_kind(PairKind.EQUAL)), found.of_kind(PairKind.ROUNDED)
    laid = sum(each.pair.axes is not None for each in found.pairs)
    layouts = f", {laid} of them after the layouts' change of axes" if laid else ""
    all_of_them = "The only tensor" if num == 1 else f"All {num} tensors"
    if not rounded:
        return f"{all_of_them} {'is' if num == 1 else 'are'} equal{layouts}"
    how = Counter(each.note for each in rounded).most_common(1)[0][0]
    most = max(each.distance.relative for each in rounded if each.distance)
    are_equal = f"{equal} are equal, " if equal else ""
    return (
        f"{all_of_them} {'agrees' if num == 1 else 'agree'}{layouts}: {are_equal}{len(rounded)} after rounding {how}, "
        f"which moved them by {format_short(most)} of their norm at most"
    )


def _nothing_moved(found: CheckpointComparison) -> str:
    names_alone = all(each.pair.reference == each.pair.candidate for each in found.pairs)
    if found.of_kind(PairKind.ROUNDED) or found.formats[0] != found.formats[1] or not names_alone:
        return ""
    return " If they are two states of one training, nothing moved between them."


def _training(found: CheckpointComparison) -> str:
    parameters = [each for each in found.pairs if each.pair.role is Role.PARAMETER]
    still = found.of_kind(PairKind.NOT_UPDATED)
    far = median([each.distance.relative for each in parameters if each.distance] or [0.0])
    wrong = found.of_kind(PairKind.NOT_LOADED, PairKind.TRANSPOSED, PairKind.SWAPPED)
    first = f"{_worst(found, wrong[0])}; of" if wrong else "Of"
    moved = f"{len(parameters) - len(still)} moved, by {format_short(far)} of their norm in the median"
    stood = f", and {len(still)} did not: {join_names([each.pair.reference for each in still])}" if still else ""
    return f"{first} {plural(len(parameters), 'parameter')} {moved}{stood}."


def _worst(found: CheckpointComparison, worst: ComparedPair) -> str:
    name = worst.pair.reference
    match worst.kind:
        case PairKind.NOT_LOADED:
            return f"{name} was not loaded: {worst.note}"
        case PairKind.TRANSPOSED:
            return f"{name} is transposed: {worst.note}"
        case PairKind.SWAPPED:
            return f"{name} and {worst.partner} are swapped"
        case _:
            numbers = _numbers(worst)
            more = "" if len(found.of_kind(PairKind.DIFFERENT)) == 1 else " most"
            return f"{name} differs{more}: {worst.note or numbers}"


def _rest(found: CheckpointComparison) -> str:
    counted = Counter(each.kind for each in found.pairs)
    texts = [f"{counted[kind]} {kind.value}" for kind in PairKind if counted[kind]]
    missing = f"; {_missing(found)}" if any(found.missing) else ""
    return f"of {plural(len(found.pairs), 'pair')} {', '.join(texts)}{missing}"


def _missing(found: CheckpointComparison) -> str:
    reference, candidate = found.missing
    sides = ((reference, "the reference"), (candidate, "the candidate"))
    parts = [f"{plural(len(left), 'tensor')} of {side}" for left, side in sides if left]
    return f"{' and '.join(parts)} {'has' if len(reference) + len(candidate) == 1 else 'have'} no counterpart"


def _is_progress(each: ComparedPair, found: CheckpointComparison) -> bool:
    """Say whether a difference is what a training is for."""
    is_counter = each.distance is None
    return found.is_one_training and each.kind is PairKind.DIFFERENT and (is_counter or not each.note)


def _numbers(each: ComparedPair) -> str:
    if each.distance is None:
        return ""
    far = each.distance
    return f"relative {format_short(far.relative)}, max {format_short(far.largest)}, cosine {far.cosine:.4f}"


def _describe_pair(each: ComparedPair) -> str:
    words = [each.note, _numbers(each) if each.kind is PairKind.DIFFERENT else ""]
    name = each.pair.reference
    if each.pair.candidate != name:
        name += f" = {each.pair.candidate}"
    return f"{name}  {'; '.join(word for word in words if word)}".rstrip()


def _unpaired_facts(found: CheckpointComparison) -> Iterator[tuple[str, str]]:
    for title, unpaired in zip(("only in REF", "only in CAND"), found.missing, strict=True):
        for each in unpaired[:MAX_LINES]:
            yield title, f"{each.name} {each.shape}  {_why(each)}"
        if len(unpaired) > MAX_LINES:
            yield title, f"and {len(unpaired) - MAX_LINES} more: --table lists all"


def _why(each: UnpairedTensor) -> str:
    near = f"; nearest {each.nearest}" if each.nearest and each.nearest not in each.why else ""
    return f"{each.why}{near}"


def _how_paired(found: CheckpointComparison) -> str:
    guessed = [each for each in found.pairs if each.pair.by.is_guess]
    how = f"{found.formats[0]} against {found.formats[1]}"
    others = sum(not each.matters for each in (*found.only_reference, *found.only_candidate))
    if others:
        how += f"; {plural(others, 'tensor')} besides the weights without a counterpart (--table)"
    unequal = [each for each in guessed if each.kind not in (PairKind.EQUAL, PairKind.ROUNDED)]
    if not unequal:
        return how
    return (
        f"{how}; {plural(len(unequal), 'pair')} that differ{'s' if len(unequal) == 1 else ''} "
        f"rest{'s' if len(unequal) == 1 else ''} on shape or order alone: --map FILE decides"
    )
