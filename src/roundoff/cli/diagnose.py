"""`roundoff diagnose`: what went wrong in a run, from its folder alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.exit_codes import COULD_NOT_LOOK
from roundoff.cli.console.screen import columns, waiting

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis


@click.command("diagnose", epilog="Example: roundoff diagnose runs/train-1 --explain")
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--against", metavar="REF", type=click.Path(path_type=Path), help="Also hold it against this run.")
@click.option("--explain", is_flag=True, help="Also list what was looked at and found fine.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--exit-zero", is_flag=True, help="End with 0 whatever was found, for chains that must go on.")
def diagnose_command(path: Path, against: Path | None, explain: bool, as_json: bool, exit_zero: bool) -> None:
    """Say what went wrong in RUN, where, since when, and what to change; the findings go into its findings.json.

    Ends with 1 if there is an error or a warning, with 2 if it could not look.
    """
    from roundoff.cli.curves import curve_lines
    from roundoff.diagnose import diagnose_run
    from roundoff.diagnose.rules import RULES, Rule
    from roundoff.report import explained_text, findings_text, next_commands, saved_line
    from roundoff.runs import Run, to_json

    run = Run.open(path)
    rules: tuple[Rule, ...] = RULES
    if against is not None:
        from roundoff.diagnose.against import against as rule_against

        rules = (*RULES, rule_against(Run.open(against)))
    with waiting("diagnosing"):
        diagnosis = diagnose_run(run, rules=rules)
    run.write_findings(diagnosis.findings)
    if as_json:
        findings = [finding.to_object() for finding in diagnosis.findings]
        click.echo(to_json({"run": str(path), "findings": findings, "checked": list(diagnosis.checked)}, indent=1))
    else:
        curves = [] if diagnosis.is_clean else curve_lines(run.metrics(), indent="  ")
        text = findings_text(
            diagnosis.findings,
            saved=saved_line(run, diagnosis),
            next_commands=next_commands(run, diagnosis),
            watched="\n".join(curves) or None,
            width=columns(),
        )
        click.echo(text)
        if explain and diagnosis.checked:
            click.echo(explained_text(diagnosis.checked))
    sys.exit(0 if exit_zero else exit_code(diagnosis))


def exit_code(diagnosis: Diagnosis) -> int:
    """Return 1 if there is an error or a warning, else 0, or 2 where a rule could not look."""
    if not diagnosis.is_clean:
        return 1
    return 0 if diagnosis.is_complete else COULD_NOT_LOOK
