"""`roundoff report`: a run as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, fills, json_option
from roundoff.cli.terminal import echo
from roundoff.errors import UsageError
from roundoff.files import write_output
from roundoff.progress import waiting
from roundoff.words import size_text

_PAGE_START = b"<!doctype html"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The options of `roundoff report`."""

    path: Path
    against: Path | None
    output: Path | None
    as_json: bool


@click.command("report", epilog="Example: roundoff report runs/train-1 -o page.html")
@click.argument("path", metavar="RUN", type=PATH)
@click.option("--against", metavar="REF", type=PATH, help="Also compare it with this run.")
@click.option("-o", "--output", metavar="FILE", type=PATH, help="Output file.  [default: RUN/report.html]")
@json_option("Print the path of the page and what it contains as JSON.")
@fills(ReportOptions)
def report_command(options: ReportOptions) -> None:
    """Write an HTML page about RUN: the verdict, curves, recorded steps op by op, sites and settings.

    The page is one file and needs no network. Exits with 0 once it is written, whatever was found.
    """
    from roundoff.diagnose.diagnosis import view_run
    from roundoff.report.run_page.document import run_page
    from roundoff.runs import JsonValue, Run

    run = Run.open(options.path)
    target = options.output if options.output is not None else options.path / "report.html"
    _check_replaceable(target)
    with waiting("writing the page"):
        view = view_run(run, against=Run.open(options.against) if options.against is not None else None)
        page = run_page(view)
    size_bytes = _write(target, page.html)
    if options.as_json:
        facts: JsonValue = {
            "page": str(target),
            "size_bytes": size_bytes,
            "sections": list(page.sections),
            "thinned": list(page.thinned),
            "findings": [finding.to_object() for finding in view.findings],
        }
        echo_json("report", facts, indent=1)
    else:
        echo(f"{target}   {size_text(size_bytes)}")


def _check_replaceable(path: Path) -> None:
    """Refuse to overwrite a file that is not an HTML page."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(_PAGE_START))
    if start and start.lower() != _PAGE_START:
        raise UsageError.explain(
            f"'{path}' exists and is not an HTML page.",
            why="it would be overwritten.",
            fix="name another file: -o FILE.html",
        )


def _write(path: Path, text: str) -> int:
    """Write the page and return its size in bytes."""
    content = text.encode()
    try:
        write_output(path, content, is_private=True)
    except OSError as error:
        raise UsageError.explain(
            f"'{path}' cannot be written.", why=f"{error.strerror}.", fix="name another file: -o FILE.html"
        ) from error
    return len(content)
