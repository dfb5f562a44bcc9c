"""The run against its reference: both side by side, introduced and inherited error, and the first divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

from roundoff.compare.layouts.layout_comparison import LayoutComparison
from roundoff.compare.runs.divergence import ComparedTensor
from roundoff.diagnose.diagnosis import RunView
from roundoff.errors import RunFolderError
from roundoff.report.charts import Trace, chart, figure, text, vertical_line
from roundoff.report.comparisons.compared_layouts import ComparedLayouts
from roundoff.report.comparisons.compared_runs import DIVERGENCE, comparison_facts, is_origin, run_parts, tensors_table
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import facts
from roundoff.report.parts import table_html, to_html
from roundoff.report.run_page.section import Section
from roundoff.runs import CachedRun, Finding, JsonValue

DescribeRun = Callable[[CachedRun], str]


def side_by_side_section(view: RunView) -> Section | None:
    """Show the reference and the run side by side; None if there is no reference."""
    if view.reference is None:
        return None
    return Section(key="sides", title="Side by side", body=side_by_side(view.reference, view.run))


def side_by_side(reference: CachedRun, candidate: CachedRun) -> Html:
    """Return a table with a column for each run; what neither of them has is left out, what differs is marked."""
    rows = []
    for name, describe in _FACTS.items():
        reference_text, candidate_text = _describe(describe, reference), _describe(describe, candidate)
        if reference_text or candidate_text:
            cells = (tag("td", reference_text or "-"), tag("td", candidate_text or "-"))
            rows.append(
                tag(
                    "tr",
                    tag("th", name, scope="row"),
                    *cells,
                    class_="differs" if reference_text != candidate_text else None,
                )
            )
    heads = tag("tr", *(tag("th", name, scope="col") for name in ("", "reference", "candidate")))
    table = tag("table", tag("thead", heads), tag("tbody", *rows), class_="plain sides")
    return tag("div", table, class_="scrolling", tabindex=0, role="region", aria_label="the runs side by side")


def _describe(describe: DescribeRun, run: CachedRun) -> str:
    with suppress(RunFolderError):  # the sections about the file report it
        return describe(run)
    return ""


def _metric_values(run: CachedRun, name: str) -> list[float]:
    """Return the values of one of the metrics, in the order of the steps."""
    return [value for each in run.metrics() if (value := getattr(each, name)) is not None]


def _lowest_loss(run: CachedRun) -> str:
    finite = [(each.loss, each.step) for each in run.metrics() if each.loss is not None and math.isfinite(each.loss)]
    return f"{min(finite)[0]:.6g} in step {min(finite)[1]}" if finite else ""


def _verdict(run: CachedRun) -> str:
    findings = run.findings()
    return "" if findings is None else findings[0].title if findings else "nothing found"


_FACTS: dict[str, DescribeRun] = {
    "status": lambda run: run.info.status,
    "own verdict": _verdict,
    "recipe": lambda run: run.info.recipe or "",
    "steps": lambda run: "".join(str(each.step + 1) for each in run.metrics()[-1:]),
    "first loss": lambda run: "".join(f"{loss:.6g}" for loss in _metric_values(run, "loss")[:1]),
    "lowest loss": _lowest_loss,
    "last loss": lambda run: "".join(f"{loss:.6g}" for loss in _metric_values(run, "loss")[-1:]),
    "last evaluation loss": lambda run: "".join(f"{loss:.6g}" for loss in _metric_values(run, "eval_loss")[-1:]),
    "non-finite losses": lambda run: str(sum(not math.isfinite(loss) for loss in _metric_values(run, "loss")) or ""),
    "skipped steps": lambda run: str(sum(each.skipped for each in run.metrics()) or ""),
    "last loss scale": lambda run: "".join(f"{scale:g}" for scale in _metric_values(run, "loss_scale")[-1:]),
    "median step time": lambda run: f"{median(known):.2g} s" if (known := _metric_values(run, "seconds")) else "",
}
"""What is shown of each run; an empty text is left out."""


MAX_POINTS = 3000
MAX_ROWS = 1000
UNFOLDED_ROWS = 30

Placed = tuple[int, ComparedTensor]


def compared_section(view: RunView) -> Section | None:
    """Show the two runs side by side; None if there is no reference."""
    comparison, reference = view.comparison, view.reference
    if view.layouts is not None:
        return _layouts_section(view.layouts, view.findings)
    if comparison is None or reference is None:
        return None
    finding = view.divergence
    drawn = _select_drawn(comparison.rows, finding)
    picture = _figure(drawn, finding) if drawn else None
    words = "Each result, from the first op to the last: how far it is from the reference, and how far its inputs were."
    num_differing = sum(map(_is_drawn, comparison.rows))
    left_out = num_differing - len(drawn)
    body = join_html(
        *([] if finding is not None and _is_verdict(view, finding) else [to_html(run_parts(comparison, finding))]),
        facts(comparison_facts(comparison, reference=str(reference.path), candidate=str(view.run.path))),
        _jump(comparison.rows, finding),
        *([chart("compared", words=words, height=340)] if picture is not None else []),
        _table(comparison.rows, finding),
    )
    note = f"{left_out} of {num_differing} differing results are not drawn; they introduce no error of their own."
    return Section(
        key="compared",
        title="Against the reference",
        short="Reference",
        body=body,
        data={} if picture is None else {"compared": picture},
        thinned=[note] if left_out else [],
    )


def _layouts_section(layouts: LayoutComparison, findings: Sequence[Finding]) -> Section:
    compared = ComparedLayouts(
        comparison=layouts, findings=[each for each in findings if each.rule.startswith("layout-")]
    )
    body = join_html(to_html(compared.parts()), to_html(compared.tables()))
    return Section(key="compared", title="Against the reference", short="Reference", body=body)


def _table(rows: Sequence[ComparedTensor], finding: Finding | None) -> Html:
    """Return the table of results; a long one is folded."""
    if not rows:
        return Html()
    table = table_html(tensors_table(rows, finding, most=MAX_ROWS))
    if len(rows) <= UNFOLDED_ROWS:
        return table
    return tag("details", tag("summary", f"All {min(len(rows), MAX_ROWS)} results"), table, class_="folded")


def _is_verdict(view: RunView, finding: Finding) -> bool:
    """Say whether the finding is what the page begins with."""
    return bool(view.findings) and view.findings[0].rule == finding.rule


def _jump(rows: Sequence[ComparedTensor], finding: Finding | None) -> Html:
    if not any(is_origin(row, finding) for row in rows):
        return join_html()
    link = tag("a", "Jump to the first divergence", href=f"#{DIVERGENCE}", class_="button", data_reveal=DIVERGENCE)
    return tag("p", link)


def _select_drawn(rows: Sequence[ComparedTensor], finding: Finding | None) -> list[Placed]:
    """Return the differing results with their places; of too many, those that add something and some of the others."""
    differing = [(place, row) for place, row in enumerate(rows) if _is_drawn(row)]
    if len(differing) <= MAX_POINTS:
        return differing
    needed = [pair for pair in differing if is_origin(pair[1], finding)]
    adding = [pair for pair in differing if pair[1].excess > 1][: MAX_POINTS // 2]
    stride = math.ceil(len(differing) / (MAX_POINTS // 2))
    return sorted({place: (place, row) for place, row in (*differing[::stride], *adding, *needed)}.values())


def _is_drawn(row: ComparedTensor) -> bool:
    return not row.is_equal and math.isfinite(row.relative) and row.relative > 0


def _figure(drawn: Sequence[Placed], finding: Finding | None) -> JsonValue:
    plain = [pair for pair in drawn if pair[1].excess <= 1]
    adding = [pair for pair in drawn if pair[1].excess > 1]
    origin = next((place for place, row in drawn if is_origin(row, finding)), None)
    shape, note = vertical_line(origin or 0, "first divergence", colour="--bad")
    return figure(
        [
            _trace(
                "inherited from the inputs", drawn, [row.inherited or None for _, row in drawn], colour="--reference"
            ),
            _trace("explained by the formats", plain, [row.relative for _, row in plain], colour="--accent"),
            *(
                [_trace("introduced here", adding, [row.relative for _, row in adding], colour="--bad")]
                if adding
                else []
            ),
        ],
        x="result, in the order of the reference",
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


def _words(row: ComparedTensor) -> str:
    when = f"step {row.step}, {row.phase}" + (f", rank {row.rank}" if row.rank else "")
    numbers = f"difference {row.relative:.2g}, inherited {row.inherited:.2g}, {row.excess:.2g} x what formats explain"
    return f"{text(when)}<br>{text(f'{row.site} / {row.op}')}<br>{numbers}"
