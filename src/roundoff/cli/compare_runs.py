"""Two runs, compared and told."""

from __future__ import annotations

from pathlib import Path

import click

from roundoff.cli.compared import Asked, split_step
from roundoff.errors import CompareError


def answer(reference: str, candidate: str, asked: Asked) -> bool:
    """Print how two runs differ, and return whether they do beyond what formats explain."""
    from roundoff.checkpoints.pairing_map import read_name_map
    from roundoff.compare.runs import compare_runs
    from roundoff.diagnose.against import findings_against
    from roundoff.report.compared_runs import rows_csv, rows_table, runs_object, runs_text
    from roundoff.runs import Run, Severity, to_json

    (ours, our_step), (theirs, their_step) = split_step(reference), split_step(candidate)
    if our_step is not None or their_step is not None:
        from roundoff.cli.compare_steps import answer_steps

        return answer_steps(ours, our_step, theirs, their_step, asked)
    sites = read_name_map(asked.map_file) if asked.map_file else {}
    comparison = compare_runs(Run.open(ours), Run.open(theirs), step=asked.step, rank=asked.rank, sites=sites)
    finding = next(iter(findings_against(comparison)), None)
    if asked.csv is not None:
        _write(asked.csv, rows_csv(comparison.rows))
    if asked.as_json:
        click.echo(to_json({"reference": ours, "candidate": theirs, **runs_object(comparison, finding)}, indent=1))
    else:
        click.echo(runs_text(comparison, finding))
        if asked.table:
            click.echo(rows_table(comparison.rows))
    return finding is not None and finding.severity is not Severity.NOTE


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.") from error
