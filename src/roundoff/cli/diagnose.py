"""`roundoff diagnose`: what went wrong in a run, from its folder alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, exit_zero_option, fills, json_option, log_to_option
from roundoff.cli.terminal import ExitCode, echo, log_to
from roundoff.errors import UsageError
from roundoff.files import write_output
from roundoff.progress import waiting

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis
    from roundoff.runs import JsonValue, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """The options of `roundoff diagnose`."""

    path: Path
    against: Path | None
    explain: bool
    finding: str | None
    sarif: Path | None
    junit: Path | None
    log_to: tuple[str, ...]
    as_json: bool
    exit_zero: bool


@click.command("diagnose", epilog="Example: roundoff diagnose runs/train-1 --explain")
@click.argument("path", metavar="RUN", type=PATH)
@click.option("--against", metavar="REF", type=PATH, help="Also compare it with this run.")
@click.option("--explain", is_flag=True, help="Also list what each rule answered: found, fine, or nothing to look at.")
@click.option("--finding", metavar="ID", help="Only explain this finding in full, by its id or code.")
@click.option("--sarif", metavar="FILE", type=PATH, help="Also write the findings as SARIF 2.1.0, for code hosts.")
@click.option("--junit", metavar="FILE", type=PATH, help="Also write what each rule answered as JUnit XML, for CI.")
@log_to_option
@json_option("Print the findings as JSON.")
@exit_zero_option
@fills(DiagnoseOptions)
def diagnose_command(options: DiagnoseOptions) -> None:
    """Explain what went wrong in RUN, where, since when, and what to change; findings are written to findings.json.

    Exits with 1 if there is an error or a warning, with 2 if the run could not be read completely or contains no
    training step.
    """
    from roundoff.diagnose import diagnose_and_save
    from roundoff.report import answers_text, verdict_screen
    from roundoff.report.explanation import explain_finding, explanation_text
    from roundoff.runs import Answer, Run

    run = Run.open(options.path)
    reference = Run.open(options.against) if options.against is not None else None
    with waiting("diagnosing"):
        diagnosis = diagnose_and_save(run, reference=reference)
    _write_files(run, diagnosis, options)
    log_to(run, options.log_to)
    if options.finding is not None:
        explained = explain_finding(diagnosis.findings, options.finding)
        if options.as_json:
            echo_json("diagnose-finding", explained.to_object(), indent=1)
        else:
            echo(explanation_text(explained))
    elif options.as_json:
        findings = [finding.to_object() for finding in diagnosis.findings]
        answers = [answer.to_object() for answer in diagnosis.answers]
        fine = [answer.checks for answer in diagnosis.answers if answer.answer is Answer.FINE]
        answer: JsonValue = {
            "run": str(options.path),
            **diagnosis.coverage.to_object(),
            "findings": findings,
            "checked": [*fine],
            "answers": [*answers],
        }
        echo_json("diagnose", answer, indent=1)
    else:
        click.echo(verdict_screen(run, diagnosis, sys.stdout), color=True)
        if options.explain:
            echo(answers_text(diagnosis.answers))
    sys.exit(ExitCode.CLEAN if options.exit_zero else exit_code(diagnosis))


def _write_files(run: Run, diagnosis: Diagnosis, options: DiagnoseOptions) -> None:
    """Write the files that were requested, for other tools."""
    from roundoff.report.junit import to_junit
    from roundoff.report.sarif import to_sarif
    from roundoff.runs import to_json

    if options.sarif is not None:
        sarif = to_json(to_sarif(run, diagnosis, root=Path.cwd()), indent=1)
        _write(options.sarif, f"{sarif}\n".encode(), option="--sarif")
    if options.junit is not None:
        _write(options.junit, to_junit(run, diagnosis), option="--junit")


def _write(path: Path, content: bytes, *, option: str) -> None:
    try:
        write_output(path, content)
    except OSError as error:
        raise UsageError.explain(
            f"'{path}' cannot be written.", why=f"{error.strerror}.", fix=f"name another file: {option} FILE"
        ) from error


def exit_code(diagnosis: Diagnosis) -> ExitCode:
    """Return 1 if there is an error or a warning, otherwise 0, or 2 if a rule failed or nothing was watched."""
    if not diagnosis.is_clean:
        return ExitCode.FOUND
    has_looked = diagnosis.is_complete and diagnosis.coverage.watched != "nothing"
    return ExitCode.CLEAN if has_looked else ExitCode.COULD_NOT_LOOK
