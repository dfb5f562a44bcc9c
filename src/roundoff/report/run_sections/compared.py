"""The run against its reference: introduced and inherited error along the steps, and the first divergence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.compare.divergence import Row
from roundoff.report.charts import Trace, chart, figure, text, upright
from roundoff.report.compared_page import DIVERGENCE, comparison_facts, is_origin, tensors_table
from roundoff.report.compared_runs import runs_text
from roundoff.report.markup import Html, joined, tag
from roundoff.report.run_view import RunView
from roundoff.report.section import Section
from roundoff.runs import Finding, JsonValue

MOST_POINTS = 3000
MOST_ROWS = 1000

Placed = tuple[int, Row]


def compared_section(view: RunView) -> Section | None:
    """Show the two runs side by side; None if there is no reference."""
    comparison, reference = view.comparison, view.reference
    if comparison is None or reference is None:
        return None
    finding = view.divergence
    drawn = _drawn(comparison.rows, finding)
    picture = _figure(drawn, finding) if drawn else None
    words = (
        "Each result, from the first op to the last: how far it is from the reference's, and how far its inputs were."
    )
    num_differing = sum(map(_is_drawn, comparison.rows))
    left_out = num_differing - len(drawn)
    body = joined(
        *([] if finding is not None and _is_verdict(view, finding) else [tag("pre", runs_text(comparison, finding))]),
        comparison_facts(comparison, reference=str(reference.path), candidate=str(view.run.path)),
        _jump(comparison.rows, finding),
        *([chart("compared", words=words, height=340)] if picture is not None else []),
        tensors_table(comparison.rows, finding, most=MOST_ROWS) if comparison.rows else Html(),
    )
    note = f"{left_out} of {num_differing} differing results are not drawn: those that add nothing."
    return Section(
        key="compared",
        title="Against the reference",
        short="Reference",
        body=body,
        data={} if picture is None else {"compared": picture},
        thinned=[note] if left_out else [],
    )


def _is_verdict(view: RunView, finding: Finding) -> bool:
    """Say whether the finding is what the page begins with."""
    return bool(view.findings) and view.findings[0].rule == finding.rule


def _jump(rows: Sequence[Row], finding: Finding | None) -> Html:
    if not any(is_origin(row, finding) for row in rows):
        return joined()
    link = tag("a", "Jump to the first divergence", href=f"#{DIVERGENCE}", class_="button", data_reveal=DIVERGENCE)
    return tag("p", link)


def _drawn(rows: Sequence[Row], finding: Finding | None) -> list[Placed]:
    """Return the differing results with their places; of too many, those that add something and some of the others."""
    differing = [(place, row) for place, row in enumerate(rows) if _is_drawn(row)]
    if len(differing) <= MOST_POINTS:
        return differing
    needed = [pair for pair in differing if is_origin(pair[1], finding)]
    adding = [pair for pair in differing if pair[1].excess > 1][: MOST_POINTS // 2]
    stride = math.ceil(len(differing) / (MOST_POINTS // 2))
    return sorted({place: (place, row) for place, row in (*differing[::stride], *adding, *needed)}.values())


def _is_drawn(row: Row) -> bool:
    return not row.is_equal and math.isfinite(row.relative) and row.relative > 0


def _figure(drawn: Sequence[Placed], finding: Finding | None) -> JsonValue:
    plain = [pair for pair in drawn if pair[1].excess <= 1]
    adding = [pair for pair in drawn if pair[1].excess > 1]
    origin = next((place for place, row in drawn if is_origin(row, finding)), None)
    shape, note = upright(origin or 0, "first divergence", colour="--bad")
    return figure(
        [
            _trace(
                "inherited from its inputs", drawn, [row.inherited or None for _, row in drawn], colour="--reference"
            ),
            _trace("explained by the formats", plain, [row.relative for _, row in plain], colour="--accent"),
            *(
                [_trace("introduced here", adding, [row.relative for _, row in adding], colour="--bad")]
                if adding
                else []
            ),
        ],
        x="result, in the order in which the reference ran",
        y="relative difference",
        yaxis={"type": "log", "exponentformat": "power"},
        shapes=[] if origin is None else [shape],
        annotations=[] if origin is None else [note],
    )


def _trace(name: str, drawn: Sequence[Placed], values: Sequence[float | None], *, colour: str) -> Trace:
    is_inherited = colour == "--reference"
    return {
        "type": "scatter",
        "mode": "lines" if is_inherited else "markers",
        "name": name,
        "x": [place for place, _ in drawn],
        "y": list(values),
        "text": [] if is_inherited else [_words(row) for _, row in drawn],
        "hovertemplate": "inherited %{y:.2e}<extra></extra>" if is_inherited else "%{text}<extra></extra>",
        "line": {"color": f"var({colour})", "width": 1.4},
        "marker": {"color": f"var({colour})", "size": 5 if colour == "--accent" else 7},
    }


def _words(row: Row) -> str:
    when = f"step {row.step}, {row.phase}" + (f", rank {row.rank}" if row.rank else "")
    numbers = f"difference {row.relative:.2g}, inherited {row.inherited:.2g}, {row.excess:.2g} x what formats explain"
    return f"{text(when)}<br>{text(f'{row.site} / {row.op}')}<br>{numbers}"
