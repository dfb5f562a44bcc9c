"""What was tried about a bad step, or as the fix of a finding, as evidence of the findings that are about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from roundoff.runs import Finding, JsonValue, Run, Severity, WhatIfProbe

_ALREADY_BAD = 10.0
"""Steps that start with a loss this many times the lowest before them were bad before anything was changed."""
_NOT_OF_NUMBERS = ("domain-error", "masked-softmax", "no-valid-targets", "nonfinite-input")
"""What is wrong there is the code or the data: other numbers could only hide it by chance."""

_EFFECTS = {True: "the loss does not jump", False: "losses and weights stay finite"}


def with_trials(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, those about a step that was played with something changed with the results."""
    trials = [probe for probe in run.probes(WhatIfProbe) if probe.rule is not None or not _were_bad_before(run, probe)]
    return [
        replace(finding, evidence=(*finding.evidence, *_evidence(finding, trials)))
        if finding.severity is not Severity.NOTE and finding.rule not in _NOT_OF_NUMBERS
        else finding
        for finding in findings
    ]


def _evidence(finding: Finding, trials: Sequence[WhatIfProbe]) -> Iterator[JsonValue]:
    for trial in trials:
        is_about = trial.step == finding.step if trial.rule is None else trial.rule == finding.rule
        if is_about and finding.rank in (None, 0):
            yield {
                "tried": trial.text, "change": trial.change, "steps": [trial.first_step, trial.step],
                "is_good": trial.is_good, "is_spike": trial.is_spike,
                "effect": trial.effect or _EFFECTS[trial.is_spike],
            }  # fmt: skip


def _were_bad_before(run: Run, probe: WhatIfProbe) -> bool:
    before = [m.loss for m in run.metrics(rank=0) if m.step < probe.first_step and m.loss is not None]
    lowest = min((loss for loss in before if math.isfinite(loss)), default=None)
    first = probe.losses[0] if probe.losses else None
    return lowest is not None and first is not None and lowest > 0 and not first <= _ALREADY_BAD * lowest
