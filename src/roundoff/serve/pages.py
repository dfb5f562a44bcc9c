"""The pages of the server: the list of runs with search and sorting, and reports in a frame below a bar of links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, tag
from roundoff.serve.http import compare_link, run_link, served_page
from roundoff.serve.run_rows import STATES, RunRow

_COLUMNS = (
    ("run", False),
    ("state", False),
    ("started", False),
    ("recipe", False),
    ("steps", True),
    ("loss", True),
    ("findings", False),
)
_PICK = "Pick two runs to compare them, or any number to overlay their losses."
_FINDINGS = ("error", "warning", "note", "none", "not diagnosed")


def list_page(rows: Sequence[RunRow], *, folder: Path, poll_seconds: float) -> bytes:
    """Return the list of the runs in a directory, which updates itself every few seconds."""
    table = tag("table", _head(), tag("tbody", *map(_row, rows)), id="runs")
    area = tag("div", table, class_="scrolling", tabindex=0, role="region", aria_label="runs")
    form = tag("form", _controls(), area, action="/compare", id="list", data_poll_seconds=poll_seconds)
    live = tag("p", "", id="live", role="status", class_="faint")
    return served_page(f"Runs in {folder}", live, _no_runs(folder, is_hidden=bool(rows)), form, scripts=["list.js"])


def _controls() -> Html:
    search = tag("input", type="search", id="search", autocomplete="off", spellcheck="false", aria_keyshortcuts="/")
    states = _choice("state", "any state", (*STATES, "damaged"))
    findings = _choice("findings", "any finding", _FINDINGS)
    filters = tag(
        "span", tag("label", "Search ", search), states, findings, class_="controls", id="filters", hidden=True
    )
    pick = tag(
        "span",
        tag("span", _PICK, id="picked", role="status"),
        " ",
        tag("button", "Swap", type="button", id="swap", hidden=True),
        " ",
        tag("button", "Compare", type="submit", id="compare"),
        " ",
        tag("button", "Overlay", type="submit", id="overlay", formaction="/overlay"),
        class_="picking",
    )
    return tag("p", filters, tag("output", "", id="count", class_="faint"), pick, class_="controls filter")


def _choice(key: str, every: str, values: Sequence[str]) -> Html:
    options = [tag("option", every, value=""), *(tag("option", value, value=value) for value in values)]
    return tag("select", *options, id=f"only-{key}", aria_label=key)


def _head() -> Html:
    pick = tag("th", tag("span", "pick", class_="unseen"), scope="col")
    headings = [
        tag("th", tag("button", name, type="button"), scope="col", class_="number" if is_number else None)
        for name, is_number in _COLUMNS
    ]
    return tag("thead", tag("tr", pick, *headings))


@lru_cache(maxsize=4096)
def _row(row: RunRow) -> Html:
    words = "damaged" if row.state is None else row.state.word
    cells = _damaged_cells(row, words) if row.state is None else _cells(row, words)
    return tag("tr", *cells, data_run=row.name, data_version=row.version, data_state=words, data_findings=_worst(row))


def _damaged_cells(row: RunRow, words: str) -> list[Html]:
    empty = [tag("td")] * (len(_COLUMNS) - 3)
    name, state = tag("td", row.name, data_value=row.name), tag("td", _badge(words), data_value=words)
    return [tag("td"), name, state, *empty, tag("td", row.problem or "", class_="problem")]


def _cells(row: RunRow, words: str) -> list[Html]:
    pick = tag("input", type="checkbox", name="run", value=row.name, aria_label=f"pick {row.name}")
    about = [tag("span", text, class_="about") for text in (row.model or row.command,) if text]
    ranks = [tag("span", f"{row.info.ranks} ranks", class_="about")] if row.info.ranks > 1 else []
    detail = [tag("span", row.state.detail, class_="about")] if row.state and row.state.detail else []
    last = row.losses[-1] if row.losses else None
    return [
        tag("td", pick),
        tag("td", tag("a", row.name, href=run_link(row.name)), *about, *ranks, data_value=row.name),
        tag("td", _badge(words), *detail, data_value=words),
        tag("td", _moment(row.info.started), data_value=row.info.started, class_="moment"),
        tag("td", row.info.recipe or "", data_value=row.info.recipe),
        tag("td", str(row.num_steps), data_value=row.num_steps, class_="number"),
        tag(
            "td",
            *([loss_curve(row.losses)] if row.losses else []),
            data_value=None if last is None or math.isnan(last) else last,
            class_="number",
        ),
        tag("td", *_findings_cell(row), data_value=_rank_of_findings(row), class_="found"),
    ]


def _badge(state: str) -> Html:
    return tag("span", state, class_=f"state {state}")


def _moment(started: str) -> Html:
    """Return a time, which a script shows in the time zone of the reader."""
    return tag("time", started[:16].replace("T", " "), datetime=started)


def _worst(row: RunRow) -> str:
    if row.findings is None:
        return "not diagnosed" if row.state is not None else ""
    return str(row.findings[0].severity) if row.findings else "none"


def _rank_of_findings(row: RunRow) -> int | None:
    """Return the sort key: the most severe first, undiagnosed runs last."""
    if row.findings is None:
        return None
    return ("error", "warning", "note", "none").index(_worst(row))


def _findings_cell(row: RunRow) -> list[Html]:
    if not row.findings:
        return [tag("span", "none" if row.findings is not None else "not diagnosed", class_="faint")]
    worst, more = row.findings[0], len(row.findings) - 1
    title = tag("a", worst.title, href=run_link(row.name) + "#verdict")
    others = [tag("span", f"{more} more", class_="about")] if more else []
    return [tag("span", str(worst.severity), class_=f"severity {worst.severity}"), Html(" "), title, *others]


def _no_runs(folder: Path, *, is_hidden: bool) -> Html:
    return tag(
        "div",
        tag("p", f"There are no runs in {folder} yet. Watch a training, and it appears here while it runs:"),
        tag("pre", f"roundoff run train.py --runs {folder}\nroundoff train --data digits --runs {folder}"),
        id="no-runs",
        hidden=is_hidden,
    )


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
