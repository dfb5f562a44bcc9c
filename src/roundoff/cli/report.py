"""`roundoff report`: a run as one page that opens from disk."""

from __future__ import annotations

from pathlib import Path

import click

from roundoff.cli.console.screen import waiting
from roundoff.errors import UsageError

_PAGE_START = b"<!doctype html"


@click.command("report", epilog="Example: roundoff report runs/train-1 -o page.html")
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--against", metavar="REF", type=click.Path(path_type=Path), help="Also compare it with this run.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="By default RUN/report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print where the page is and what is on it as JSON.")
def report_command(path: Path, against: Path | None, output: Path | None, as_json: bool) -> None:
    """Write a page about RUN: the verdict, its curves, its recorded steps op by op, its sites and settings.

    The page is one file, needs no network and can be sent to anybody. Ends with 0 once it is written, whatever it says.
    """
    from roundoff.report.run_page.document import run_page
    from roundoff.report.run_page.view import view_of
    from roundoff.runs import JsonValue, Run, to_json

    run = Run.open(path)
    target = output if output is not None else path / "report.html"
    _refuse_to_replace(target)
    with waiting("writing the page"):
        view = view_of(run, against=Run.open(against) if against is not None else None)
        page = run_page(view)
    size_bytes = _write(target, page.html)
    if as_json:
        facts: JsonValue = {
            "page": str(target),
            "size_bytes": size_bytes,
            "sections": list(page.sections),
            "thinned": list(page.thinned),
            "findings": [finding.to_object() for finding in view.findings],
        }
        click.echo(to_json(facts, indent=1))
    else:
        click.echo(f"{target}   {size_bytes / 1e6:.1f} MB")


def _refuse_to_replace(path: Path) -> None:
    """Raise if something else than a page would be lost."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(_PAGE_START))
    if start and start.lower() != _PAGE_START:
        raise UsageError.explain(
            f"'{path}' is there already, and is no page.",
            why="it would be lost.",
            fix="name another file: -o FILE.html",
        )


def _write(path: Path, text: str) -> int:
    """Write the page and return its size; a `UsageError` says why if that cannot be."""
    content = text.encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError.explain(
            f"'{path}' cannot be written.", why=f"{error.strerror}.", fix="name another file: -o FILE.html"
        ) from error
    return len(content)
