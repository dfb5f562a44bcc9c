"""A report as the server shows it: in a frame, below a bar with the state of the run and links."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.report.markup import Html, tag
from roundoff.serve.run_rows import RunRow
from roundoff.serve.served_page import compare_link, run_link, served_page


def run_frame(row: RunRow, *, stamp: str, has_tensors: bool, poll_seconds: float) -> bytes:
    """Return the frame around the report about a run."""
    source = run_link(row.name, "page")
    links = [
        *([tag("a", "tensors", href=run_link(row.name, "tensors"))] if has_tensors else []),
        tag("a", "save page", href=source, download=f"{row.name}.html"),
        tag("a", "JSON", href="/api" + run_link(row.name)),
    ]
    return _frame(row.name, source=source, runs=[row], stamp=stamp, links=links, poll_seconds=poll_seconds)


def compare_frame(reference: RunRow, candidate: RunRow, *, stamp: str, poll_seconds: float) -> bytes:
    """Return the frame around the comparison of two runs."""
    source = compare_link(reference=reference.name, candidate=candidate.name, more="/page")
    title = f"{candidate.name} against {reference.name}"
    links = [
        tag("a", "swap", href=compare_link(reference=candidate.name, candidate=reference.name)),
        tag("a", reference.name, href=run_link(reference.name)),
        tag("a", candidate.name, href=run_link(candidate.name)),
        tag("a", "save page", href=source, download=f"{title}.html"),
    ]
    rows = [candidate, reference]
    return _frame(title, source=source, runs=rows, stamp=stamp, links=links, poll_seconds=poll_seconds)


def _frame(
    title: str, *, source: str, runs: Sequence[RunRow], stamp: str, links: Sequence[Html], poll_seconds: float
) -> bytes:
    state = runs[0].state
    word = state.word if state is not None else "damaged"
    bar = tag(
        "nav",
        tag("a", "← all runs", href="/"),
        tag("span", word, class_=f"state {word}", id="state"),
        tag("span", "", id="live", role="status", class_="faint"),
        tag("label", tag("input", type="checkbox", id="follow", checked=True), " update automatically", hidden=True),
        *links,
        class_="bar",
        aria_label="this run",
    )
    frame = tag("iframe", src=source, title=title, data_stamp=stamp)
    names = [tag("data", value=row.name, class_="watched", hidden=True) for row in runs]
    body = tag("div", frame, id="frames", data_source=source, data_poll_seconds=poll_seconds)
    return served_page(title, bar, *names, body, scripts=["frame_state.js", "frame.js"], styles=["frame.css"])
