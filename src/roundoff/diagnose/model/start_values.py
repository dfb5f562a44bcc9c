"""Weights whose initial values cannot learn: all 0, or the same for every unit of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roundoff.diagnose import needs
from roundoff.diagnose.layers import first_rank
from roundoff.diagnose.parameter_histories import ParameterHistory, first_histories
from roundoff.diagnose.rule import Code, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, ParameterFacts, Run, Severity, Structure
from roundoff.words import join_names, plural

_MIN_COPIES = 4
_MIN_ROW = 4
"""In shorter rows a single update may agree by chance."""


def stuck_start_values(run: Run) -> list[Finding]:
    """Find weights that start at 0 and stay there, or whose rows start equal and stay equal.

    Initial zeros are often intended (a head, the last layer of a residual branch) and learn from the second step on:
    only those that never do are reported.
    """
    looks = run.structures(rank=first_rank(run))
    if not looks:
        return []
    histories = first_histories(run)
    weights = [p for p in looks[0].parameters if p.name is not None and len(p.shape) >= 2 and p.requires_grad]
    weights = [p for p in weights if p.name in histories]
    stuck = [p for p in weights if p.is_zero and histories[str(p.name)].is_always_zero]
    if stuck:
        return [_zero_finding(looks[0], stuck, histories)]
    equal = [p for p in weights if _stays_equal(p, looks, histories[str(p.name)])]
    zero = [p for p in equal if p.is_zero]
    if zero:
        return [_zero_finding(looks[0], zero, histories)]
    return [_symmetric_finding(looks[0], equal)] if equal else []


def _stays_equal(weight: ParameterFacts, looks: Sequence[Structure], history: ParameterHistory) -> bool:
    """Say whether all rows are still equal after updates that could have made them different."""
    if not (np.nan_to_num(history.update) > 0).any():
        return False
    seen = [p for look in looks for p in look.parameters if p.name == weight.name and p.shape == weight.shape]
    row = int(np.prod(weight.shape[1:]))
    has_moved_before = bool((history.update[history.steps == looks[0].step] > 0).any())
    if len(seen) < 2 and (row < _MIN_ROW or not has_moved_before):
        return False
    return all(_share_rows(p) for p in seen)


def _share_rows(weight: ParameterFacts) -> bool:
    """Say whether rows repeat: all are equal, or those of each gate of a recurrent layer."""
    if weight.equal_rows:
        return True
    return weight.num_distinct_rows is not None and weight.num_distinct_rows * _MIN_COPIES <= weight.shape[0]


def _zero_finding(
    look: Structure, zero: Sequence[ParameterFacts], histories: Mapping[str, ParameterHistory]
) -> Finding:
    names = [str(p.name) for p in zero]
    learning = [name for name, history in histories.items() if not history.is_always_zero]
    without = len(histories) - len(learning)
    effect = (
        f"; {without} of {plural(len(histories), 'parameter')} never get a nonzero gradient, only "
        f"{join_names(learning)} {'does' if len(learning) == 1 else 'do'}"
        if without
        else "; all units of a layer then get the same gradient and stay equal"
    )
    return Finding(
        rule="zero-init",
        severity=Severity.ERROR,
        confidence=0.95,
        step=look.step,
        site=zero[0].site,
        parameter=names[0],
        title=f"{names[0]} starts at 0 and cannot learn",
        why=f"every element of {join_names(names)} is 0 at the start{effect}",
        fix="initialize weights randomly (the layer's reset_parameters(), nn.init.kaiming_uniform_); only biases, or "
        "the last layer alone, may start at 0",
        evidence=({"zero": list(names)}, {"learning": list(learning)}),
    )


def _symmetric_finding(look: Structure, equal: Sequence[ParameterFacts]) -> Finding:
    names = [str(p.name) for p in equal]
    first = equal[0]
    value = f" ({format_short(first.mean)} everywhere)" if first.mean is not None and not first.std else ""
    return Finding(
        rule="symmetric-init",
        severity=Severity.ERROR,
        confidence=0.95,
        step=look.step,
        site=first.site,
        parameter=names[0],
        title=f"the {first.shape[0]} rows of {names[0]} are {'identical' if first.equal_rows else 'copies of a few'}",
        why=f"{join_names(names)}{value}: units that start equal get equal gradients; their rows are still equal "
        "after the updates, so each layer computes one unit many times",
        fix="initialize weights randomly: nn.init.kaiming_uniform_ or xavier_uniform_ instead of a constant",
        evidence=({"equal_rows": list(names)},),
    )


RULES = (
    Rule(
        order=420,
        checks="initial values that cannot learn",
        find=stuck_start_values,
        needs=(needs.structure, needs.measured_parameters),
        codes=(
            Code(
                name="zero-init",
                means="Weights start at 0 and stay there, because no gradient can move them.",
                detected="Weights that are all 0 at the start and still 0 after the first updates.",
                fix="Initialize weights randomly; only biases, or a last layer alone, may start at 0.",
            ),
            Code(
                name="symmetric-init",
                means="The rows of a weight start equal, get equal gradients and stay equal, so many units compute the "
                "same thing.",
                detected="Weights whose rows are bitwise equal at the start and after the first updates.",
                fix="Initialize weights randomly: `nn.init.kaiming_uniform_` instead of a constant.",
            ),
        ),
    ),
)
