"""The same batch in train mode and in eval mode: random in evaluation, or another loss altogether."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from roundoff.diagnose.numbers import short
from roundoff.record.sites import LOOP
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.step_ops import bare_name

_DROPS = ("dropout", "bernoulli", "attention", "rrelu")
"""What leaves things out at random, as training does; other random numbers may be the model's purpose."""
_RATIO, _DIFFERENCE = 3.0, 0.1
_TIMES_TO_SETTLE = 5.0
"""Running statistics follow within a few times 1/momentum steps."""


def random_evaluations(run: Run) -> list[Finding]:
    """Find ops that draw random numbers in eval mode and make the loss another one each time."""
    for probe in _eval_probes(run):
        ops = [op for op in probe.get("random_ops") or [] if op["site"] != LOOP]  # the loop has no mode
        dropping = [op for op in ops if any(name in bare_name(op["op"]) for name in _DROPS)]
        is_random = probe.get("eval_loss") != probe.get("eval_again")
        if dropping:
            return [_random(probe, dropping[0], len(dropping), Severity.ERROR)]
        if ops and is_random:
            return [_random(probe, ops[0], len(ops), Severity.NOTE)]
    return []


def evaluation_gaps(run: Run) -> list[Finding]:
    """Find a model that is much worse in eval mode on the very batch it does well on in train mode."""
    for probe in _eval_probes(run):
        train, evaluated = probe.get("train_loss"), probe.get("eval_loss")
        if not isinstance(train, float) or not isinstance(evaluated, float) or not math.isfinite(train):
            continue
        is_far = evaluated > _RATIO * abs(train) and evaluated - train > _DIFFERENCE
        if (is_far or not math.isfinite(evaluated)) and probe["step"] + 1 >= _steps_to_settle(run):
            return [_gap(probe, train, evaluated)]
    return []


def _eval_probes(run: Run) -> list[Mapping[str, Any]]:
    return [probe for probe in run.probes() if probe.get("probe") == "eval-mode"]


def _steps_to_settle(run: Run) -> float:
    """Return after how many steps the slowest norm's statistics can be expected to be those of the data."""
    slowest = 0.0
    for structure in run.structures():
        for module in structure.modules:
            momentum = module.settings.get("momentum")
            if module.has_start_statistics is not None and isinstance(momentum, float) and momentum > 0:
                slowest = max(slowest, _TIMES_TO_SETTLE / momentum)
    return slowest


def _random(probe: Mapping[str, Any], op: Mapping[str, Any], count: int, severity: Severity) -> Finding:
    losses = f"the same batch gives {_told(probe.get('eval_loss'))} and then {_told(probe.get('eval_again'))}"
    more = f"; {count - 1} more ops do so" if count > 1 else ""
    is_error = severity is Severity.ERROR
    return Finding(
        rule="stochastic-eval",
        severity=severity,
        confidence=0.95 if is_error else 0.6,
        step=probe["step"],
        phase="eval",
        site=op.get("site"),
        op=op.get("op"),
        source=op.get("source"),
        title=f"{bare_name(op['op'])} draws random numbers in eval mode",
        why=f"with every module in eval mode {losses}{more}",
        fix="hand the mode on: F.dropout(x, p, training=self.training), dropout_p=self.p if self.training else 0.0, or "
        "use nn.Dropout, which knows it"
        if is_error
        else "if evaluation is to be repeatable, use the mean instead of a sample in eval mode, or seed a generator",
        evidence=({"random_ops": [dict(op)], "eval_loss": probe.get("eval_loss"), "again": probe.get("eval_again")},),
    )


def _gap(probe: Mapping[str, Any], train: float, evaluated: float) -> Finding:
    return Finding(
        rule="train-eval-gap",
        severity=Severity.ERROR,
        confidence=0.8,
        step=probe["step"],
        phase="eval",
        title="the model is another one in eval mode",
        why=f"the same batch, with the same weights, has the loss {short(train)} in train mode and {_told(evaluated)} "
        "in eval mode; between them lie only norms' running statistics, dropout and code that asks for self.training",
        fix="look at the running statistics of the norms, and at what the model does only in one of the two modes",
        evidence=({"train_loss": train, "eval_loss": evaluated},),
    )


def _told(loss: object) -> str:
    return short(loss) if isinstance(loss, float) and math.isfinite(loss) else str(loss)
