"""Histograms of exponents: the powers of two of each tensor, compared with what each format can represent."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from roundoff.diagnose.diagnosis import RunView
from roundoff.diagnose.numbers.format_ranges import (
    FORMATS,
    Counts,
    CutOff,
    Range,
    bucket_begin,
    cut_offs,
    fixed_range,
    range_of,
)
from roundoff.diagnose.wording import format_of, largest_of
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.parts import Cell, TableColumn, TableRow, percent, table
from roundoff.report.run_page.section import ChosenStep, Section, choose_steps
from roundoff.runs import JsonValue, script_words

Kind = Literal["output", "gradient", "weight"]
MAX_TENSORS = 1200
"""Of all steps together; about 200 bytes each."""
_COLUMNS = (
    "step", "rank", "microbatch", "phase", "site", "op", "nth", "output", "order", "parameter", "dtype", "shape",
    "num_elements", "min", "max", "num_nan", "num_posinf", "num_neginf", "num_zero", "histogram",
)  # fmt: skip


MAX_ROWS = 150
USUAL_BITS = 8
_KINDS = {"output": "results", "gradient": "gradients", "weight": "weights"}
_EXPLAINED = (
    "How the non-zero values of a tensor are distributed over powers of two, and below it the range of each format: "
    "full or reduced precision along its bar, nothing beyond it. Values are compared with the formats as "
    "they are, although 8-bit recipes scale each tensor first; fixed point is scaled to the largest value. For "
    "large tensors only a part was counted, so the shares are estimates."
)


def exponents_section(view: RunView) -> Section | None:
    """Show the histograms that the run holds; say how to get some if it was recorded without; None if it was not."""
    steps, _ = choose_steps(view)
    if not steps:
        return None
    tensors, notes = exponent_rows(steps, num_bits=_fixed_bits(view))
    title = "Exponents"
    if not tensors:
        command = f"roundoff record --histograms {script_words(view.run.info)}"
        words = f"This run was recorded without histograms. To record them:  {command}"
        return Section(key="exponents", title=title, body=tag("p", words))
    ranked = sorted(range(len(tensors)), key=lambda place: tensors[place].badness, reverse=True)
    worst = ranked[:MAX_ROWS]
    if len(worst) < len(tensors):
        notes.append(f"The table lists the {MAX_ROWS} tensors that lose most; all {len(tensors)} can be selected.")
    return Section(
        key="exponents",
        title=title,
        body=join_html(tag("p", _EXPLAINED, class_="faint"), _body(), _table(tensors, worst)),
        data={"exponents": _values(tensors, first=_first(view, tensors))},
        thinned=notes,
    )


def _fixed_bits(view: RunView) -> int:
    """Return the bits of the run's fixed point, if it has a recipe of that kind, or the usual ones."""
    structures = view.run.structures()
    for optimizer in structures[-1].optimizers if structures else ():
        try:
            fixed = tomllib.loads(optimizer.recipe or "").get("fixed", {})
        except tomllib.TOMLDecodeError:
            continue
        setting = fixed.get("activation") if isinstance(fixed, Mapping) else None
        bits = setting.get("bits") if isinstance(setting, Mapping) else None
        if isinstance(bits, int) and 1 <= bits <= 24:
            return bits
    return USUAL_BITS


def _first(view: RunView, tensors: Sequence[TensorExponents]) -> int:
    """Return the tensor to begin with: the verdict's op, or another one of its site, or the one that loses most.

    It has something to show: an origin may have made nothing that is finite.
    """
    for finding in view.findings:
        places = [
            place
            for place, each in enumerate(tensors)
            if each.site == finding.site and finding.step in (None, each.step) and each.counts.any()
        ]
        if places:
            return next((place for place in places if tensors[place].name == finding.op), places[0])
    return max(range(len(tensors)), key=lambda place: tensors[place].badness)


def _body() -> Html:
    chooser = [
        tag("label", f"{words} ", tag("select", id=f"exponent-{name}"))
        for name, words in (("step", "Step"), ("kind", "Kind"), ("site", "Site"), ("tensor", "Tensor"))
    ]
    words = "The share of the non-zero elements at each power of two; below, the range of each format."
    place = tag("div", class_="plot", id="exponent-chart", role="img", aria_label=words, data_height=420)
    return tag(
        "div",
        tag("p", *chooser, class_="controls", hidden=True),
        tag("p", id="exponent-words", aria_live="polite"),
        tag("figure", place, tag("figcaption", words), class_="chart"),
        tag("div", id="exponent-cuts"),
        tag("noscript", tag("p", "The histograms need JavaScript; the table below does not.")),
        id="exponent-view",
    )


def _table(tensors: Sequence[TensorExponents], places: Sequence[int]) -> Html:
    columns = [
        TableColumn(name="tensor"),
        TableColumn(name="kind"),
        TableColumn(name="step", is_number=True),
        TableColumn(name="format"),
        TableColumn(name="absmax", is_number=True),
        *(TableColumn(name=f"{name} {what}", is_number=True) for name in FORMATS[1:] for what in ("beyond", "lost")),
    ]
    return table(columns, [_row(tensors[place], place) for place in places], noun="tensors")


def _row(each: TensorExponents, place: int) -> TableRow:
    name = f"{each.site} / {each.name}"
    shown = tag("button", name, type="button", data_tensor=place, class_="link")
    cells = [
        Cell(shown=shown, value=name),
        Cell(shown=each.kind, value=each.kind),
        Cell(shown=str(each.step), value=each.step),
        Cell(shown=format_of(each.dtype), value=each.dtype),
        Cell(shown=f"{each.absmax:.3g}", value=each.absmax),
    ]
    for cut in each.cuts[1 : len(FORMATS)]:
        cells += [Cell(shown=percent(share), value=share) for share in (cut.beyond, cut.lost)]
    return TableRow(cells=cells)


def _values(tensors: Sequence[TensorExponents], *, first: int) -> JsonValue:
    """Return everything that the script draws; steps and sites are listed once, tensors refer to them by number."""
    steps: dict[str, int] = {}
    sites: dict[str, int] = {}
    rows: list[JsonValue] = []
    for each in tensors:
        label = f"step {each.step}" + (f", rank {each.rank}" if each.rank else "")
        begin = next((bucket for bucket, count in enumerate(each.counts) if count), 0)
        counts = each.counts[begin:].tolist()
        while counts and not counts[-1]:
            counts.pop()
        rows.append(
            {
                "step": steps.setdefault(label, len(steps)),
                "kind": each.kind,
                "site": sites.setdefault(each.site, len(sites)),
                "name": each.name,
                "about": _about(each),
                "begin": begin,
                "counts": counts,
                "cuts": [[cut.beyond, cut.lost, cut.rough] for cut in each.cuts],
                **({"fixed": _range(each.fixed)} if each.fixed is not None else {}),
            }
        )
    return {
        "first": first,
        "kinds": dict(_KINDS),
        "begins": [bucket_begin(bucket) for bucket in range(len(tensors[0].counts) + 1)],
        "formats": [_range(range_of(name)) for name in FORMATS],
        "steps": list(steps),
        "sites": list(sites),
        "tensors": rows,
    }


def _about(each: TensorExponents) -> str:
    """Say what a tensor is, and how much of it the histogram does not show."""
    facts = [f"{format_of(each.dtype)} {each.shape or 'scalar'}", f"largest magnitude {each.absmax:.3g}"]
    if each.num_nonfinite:
        facts.append(f"{each.num_nonfinite} of {each.num_elements} not finite")
    if each.num_zero:
        facts.append(f"{percent(each.num_zero / each.num_elements)} of it is 0")
    return ", ".join(facts)


def _range(each: Range) -> dict[str, JsonValue]:
    return {
        "name": each.name,
        "largest": math.log2(each.largest),
        "normal": math.log2(each.smallest_normal),
        "smallest": math.log2(each.smallest),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorExponents:
    """One tensor: where it is from, its histogram, and what each format would cut off."""

    step: int
    rank: int
    kind: Kind
    site: str
    name: str
    """The op, or the parameter."""
    dtype: str
    shape: str
    absmax: float
    num_elements: int
    num_nonfinite: int
    num_zero: int
    counts: Counts
    cuts: Sequence[CutOff]
    """By `FORMATS`, then fixed point."""
    fixed: Range | None

    @property
    def badness(self) -> tuple[bool, float, float, float]:
        """What it is ranked by: shares that fp16, e5m2 and e4m3 would lose or not hold; a single number comes last."""
        fp16, e5m2, e4m3 = (cut.beyond + cut.lost for cut in self.cuts[1 : len(FORMATS)])
        return self.num_elements > 1, fp16, e5m2, e4m3


def exponent_rows(steps: Sequence[ChosenStep], *, num_bits: int) -> tuple[list[TensorExponents], list[str]]:
    """Return tensors with histograms, in their order, those of telling steps first in line for the room there is."""
    found: list[TensorExponents] = []
    without: set[int] = set()
    shown = left_out = 0
    for step in sorted(steps, key=lambda each: not each.is_telling):
        if id(step.holder) in without:
            continue
        room = MAX_TENSORS - len(found)
        rows = _rows(step) if room else []
        if room and not rows:
            without.add(id(step.holder))  # histograms are recorded of every step or of none
        kept = rows if len(rows) <= room else [rows[place] for place in _even(len(rows), room)]
        found += [_tensor(row, num_bits=num_bits) for row in kept]
        shown += bool(rows)
        left_out += len(rows) - len(kept)
    num_steps = sum(id(step.holder) not in without for step in steps)
    notes = []
    if left_out:
        notes.append(f"{left_out} tensors of the last of these steps are left out, at even intervals.")
    if shown < num_steps:
        notes.append(f"Histograms of {shown} of {num_steps} steps are shown, to keep the page small.")
    return sorted(found, key=lambda each: (each.step, each.rank)), notes


def _rows(step: ChosenStep) -> list[dict[str, Any]]:
    """Read the tensors of a step that have a histogram; of a weight that was seen several times the first."""
    table = step.holder.events(step=step.step, rank=step.rank, columns=_COLUMNS)
    is_result = table.texts("output").starts_with("output") & ~table.texts("phase").equals("optimizer")
    table = table.take(is_result & ~table["histogram"].is_null)
    rows: dict[object, dict[str, Any]] = {}
    for row in table.take(np.argsort(table.numbers("order"), kind="stable")).to_list():
        rows.setdefault(row["parameter"] if row["op"] == "parameter" else len(rows), row)
    return list(rows.values())


def _even(num: int, most: int) -> list[int]:
    return sorted(set(np.linspace(0, num - 1, most).astype(int).tolist())) if most > 0 else []


def _infinite_share(row: dict[str, Any]) -> float:
    """Return how many of the elements other than 0 and NaN are infinite."""
    num = int(row["num_posinf"] + row["num_neginf"])
    return num / max(1, int(row["num_elements"] - row["num_zero"] - row["num_nan"]))


def _largest(dtype: str) -> float:
    name = format_of(dtype)
    return largest_of(name) if name != dtype else math.inf


def _kind(row: dict[str, Any]) -> Kind:
    if row["op"] == "parameter":
        return "weight"
    return "gradient" if row["op"] == "gradient" or row["phase"] == "backward" else "output"


def _tensor(row: dict[str, Any], *, num_bits: int) -> TensorExponents:
    ends = [abs(end) for end in (row["min"], row["max"]) if isinstance(end, float) and end == end]
    absmax = max(ends, default=0.0)
    counts = np.frombuffer(row["histogram"], dtype="<u2")
    fixed = fixed_range(absmax, num_bits=num_bits)
    ranges = [*map(range_of, FORMATS), *([fixed] if fixed is not None else [])]
    kind = _kind(row)
    microbatch = f", microbatch {row['microbatch']}" if row["microbatch"] else ""
    name = row["parameter"] if row["op"] in ("parameter", "gradient") else f"{row['op']}#{row['nth']}"
    output = "" if row["output"] == "output0" else f":{row['output']}"
    return TensorExponents(
        step=int(row["step"]),
        rank=int(row["rank"]),
        kind=kind,
        site=str(row["site"]),
        name=f"{name}{output}{microbatch}",
        dtype=str(row["dtype"]),
        shape=str(row["shape"]),
        absmax=absmax,
        num_elements=row["num_elements"],
        num_nonfinite=row["num_nan"] + row["num_posinf"] + row["num_neginf"],
        num_zero=row["num_zero"],
        counts=counts,
        cuts=cut_offs(
            counts,
            absmax=absmax,
            ranges=ranges,
            infinite_share=_infinite_share(row),
            own_largest=_largest(row["dtype"]),
        ),
        fixed=fixed,
    )
