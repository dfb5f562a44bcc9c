"""Two runs, compared and told."""

from __future__ import annotations

import click

from roundoff.cli.compare import CompareOptions, split_step, write_csv, write_output
from roundoff.cli.console.screen import waiting


def answer(reference: str, candidate: str, asked: CompareOptions) -> bool:
    """Print how two runs differ, and return whether they do beyond what formats explain."""
    from roundoff.checkpoints.pair.name_map import read_name_map
    from roundoff.compare.runs.run_comparison import compare_runs
    from roundoff.diagnose.against import findings_against
    from roundoff.report.comparisons.compared_runs import csv_rows, rows_table, runs_object, runs_page, runs_text
    from roundoff.runs import Run, Severity, to_json

    (ours, our_step), (theirs, their_step) = split_step(reference), split_step(candidate)
    if our_step is not None or their_step is not None:
        from roundoff.cli.compare_steps import answer_steps

        return answer_steps(ours, our_step, theirs, their_step, asked)
    sites = read_name_map(asked.map_file) if asked.map_file else {}
    with waiting("comparing"):
        comparison = compare_runs(Run.open(ours), Run.open(theirs), step=asked.step, rank=asked.rank, sites=sites)
    finding = next(iter(findings_against(comparison)), None)
    if asked.csv is not None:
        write_csv(asked.csv, csv_rows(comparison.rows))
    if asked.html is not None:
        write_output(asked.html, runs_page(comparison, finding, reference=ours, candidate=theirs))
    if asked.as_json:
        click.echo(to_json({"reference": ours, "candidate": theirs, **runs_object(comparison, finding)}, indent=1))
    else:
        click.echo(runs_text(comparison, finding))
        if asked.table:
            click.echo(rows_table(comparison.rows))
    return finding is not None and finding.severity is not Severity.NOTE
