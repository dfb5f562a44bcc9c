"""Two steps, compared and told."""

from __future__ import annotations

import click

from roundoff.cli.compare import CompareOptions
from roundoff.errors import CompareError


def answer_steps(
    reference: str, reference_step: int | None, candidate: str, candidate_step: int | None, asked: CompareOptions
) -> bool:
    """Print what changed between two steps; that they differ is no finding."""
    from roundoff.compare.runs.step_pair import compare_steps
    from roundoff.report.comparisons.compared_steps import steps_object, steps_text
    from roundoff.runs import Run, to_json

    if reference_step is None or candidate_step is None:
        raise CompareError.explain(
            "A step and a whole run cannot be compared.", fix="name a step of both: roundoff compare RUN@3 RUN@4"
        )
    comparison = compare_steps(
        Run.open(reference), reference_step, Run.open(candidate), candidate_step, rank=asked.rank or 0
    )
    if asked.as_json:
        click.echo(to_json(steps_object(comparison), indent=1))
    else:
        click.echo(steps_text(comparison, table=asked.table))
    return False
