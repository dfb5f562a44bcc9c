"""A page of the whole tensors of a run, with a preview of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from roundoff.report.html_table import Cell, Column, TableRow, table
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import facts, section
from roundoff.runs import TensorFile, shape_to_text
from roundoff.runs.files.tensor_file import TENSOR_DTYPES
from roundoff.serve.saved_tensors import TensorGroup, TensorPreview
from roundoff.serve.served_page import run_link, served_page

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
    columns = (Column(name="tensor"), Column(name="dtype"), Column(name="shape"), Column(name="bytes", is_number=True))
    rows = [_tensor(name, group, file, key) for key in islice(file, MAX_ROWS)]
    left_out = len(file) - len(rows)
    note = [tag("p", f"{left_out} more are available from the API: /api{run_link(name)}/tensors")] if left_out else []
    return section(f"Tensors of {group.title}", table(columns, rows, noun="tensors"), *note)


def _tensor(name: str, group: TensorGroup, file: TensorFile, key: str) -> TableRow:
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
