"""Evaluation that is random, far from training on the same batch, getting worse, or not finite."""

from __future__ import annotations

import math
import statistics

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, error, note, rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import EvalModeProbe, Finding, Metrics, RandomOp, Run, Severity, object_of
from roundoff.runs.records.event import LOOP, bare_name
from roundoff.words import plural

_MIN_EVALUATIONS = 5
_MIN_AFTER = 3
_RISE = 1.1


@rule(
    Code(
        name="eval-loss-rising",
        means="The evaluation loss rises while the training loss falls. This is a note, because overfitting is not a "
        "fault; it is an error if the evaluation loss is not finite.",
        fix="Stop at the step that the finding names, or regularize. If it is not finite: check the evaluation data "
        "and what the model does only in eval mode.",
        follows_from=(FaultEffect.BREAKS_EVALUATION, "train-eval-gap"),
    ),
    order=1520,
    checks="evaluation losses",
    needs=[
        needs.some(
            lambda run: any(metric.eval_loss is not None for metric in run.metrics(rank=0)),
            "no evaluation loss was recorded",
        )
    ],
)
def rising_eval_losses(run: Run) -> Finding | None:
    """Find when evaluation started to get worse while training got better, or the evaluation that broke."""
    metrics = run.metrics(rank=0)
    looks = [metric for metric in metrics if metric.eval_loss is not None]
    return _find_broken(run, metrics, looks) or _find_rising(metrics, looks)


def _find_broken(run: Run, metrics: list[Metrics], looks: list[Metrics]) -> Finding | None:
    bad = next((look for look in looks if not math.isfinite(_eval(look))), None)
    if bad is None or any(not math.isfinite(m.loss) for m in metrics if m.loss is not None and m.step <= bad.step):
        return None
    buffers = sorted({str(anomaly.name) for _, anomaly in run.anomalies() if anomaly.kind == "buffer"})
    why = f"the buffer {buffers[0]} is not finite" if buffers else "all training losses before it are finite"
    return error(
        rule="eval-loss-rising",
        confidence=0.9,
        step=bad.step,
        phase="eval",
        title=f"the evaluation loss is {bad.eval_loss}",
        why=f"{why}: the forward in eval mode, or the evaluation data, is at fault",
        fix="look for NaN in the evaluation data, and check what the model does only in eval mode: running "
        "statistics, batches of other lengths",
        evidence=({"eval_loss": bad.eval_loss, "buffers": [*buffers]},),
    )


def _find_rising(metrics: list[Metrics], looks: list[Metrics]) -> Finding | None:
    if len(looks) < _MIN_EVALUATIONS:
        return None
    best = min(range(len(looks)), key=lambda place: _eval(looks[place]))
    after = [_eval(look) for look in looks[best + 1 :]]
    lowest, last = _eval(looks[best]), statistics.median(after[-_MIN_AFTER:]) if after else 0.0
    if len(after) < _MIN_AFTER or last <= _RISE * max(lowest, 1e-12):
        return None
    turn = looks[best].step
    before, since = _losses(metrics, until=turn), _losses(metrics, since=turn)
    if not before or not since or statistics.median(since) >= statistics.median(before):
        return None
    return note(
        rule="eval-loss-rising",
        confidence=0.8,
        step=turn,
        phase="eval",
        title=f"the evaluation loss has been rising since step {turn}",
        why=f"it was {format_short(lowest)} then and is {format_short(last)} after "
        f"{plural(len(after), 'more evaluation')}, while the training loss fell from "
        f"{format_short(statistics.median(before))} to {format_short(statistics.median(since))}: the model "
        "overfits",
        fix=f"stop at step {turn}, or regularize: more data, augmentation, dropout, weight decay",
        evidence=({"best_step": turn, "best": lowest, "last": last},),
    )


def _eval(metric: Metrics) -> float:
    return math.inf if metric.eval_loss is None else metric.eval_loss


def _losses(metrics: list[Metrics], *, since: int = 0, until: float = math.inf) -> list[float]:
    return [m.loss for m in metrics if m.loss is not None and math.isfinite(m.loss) and since <= m.step <= until]


_DROPS = ("dropout", "bernoulli", "attention", "rrelu")
"""Ops that drop values at random, as in training; other random numbers may be the purpose of the model."""
_RATIO, _DIFFERENCE = 3.0, 0.1
_TIMES_TO_SETTLE = 5.0
"""Running statistics settle within a few times 1/momentum steps."""


@rule(
    Code(
        name="stochastic-eval",
        means="The model draws random numbers in eval mode, so its loss differs every time.",
        fix="Pass the mode on: `F.dropout(x, p, training=self.training)`, or use `nn.Dropout`.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1430,
    checks="random numbers in eval mode",
    needs=[needs.probe(EvalModeProbe)],
)
def random_evaluations(run: Run) -> Finding | None:
    """Find ops that draw random numbers in eval mode, so that the loss differs each time."""
    for probe in run.probes(EvalModeProbe):
        ops = [op for op in probe.random_ops if op.site != LOOP]  # the loop has no eval mode
        dropping = [op for op in ops if any(name in bare_name(op.op) for name in _DROPS)]
        is_random = probe.eval_loss != probe.eval_again
        if dropping:
            return _random_finding(probe, dropping[0], len(dropping), Severity.ERROR)
        if ops and is_random:
            return _random_finding(probe, ops[0], len(ops), Severity.NOTE)
    return None


@rule(
    Code(
        name="train-eval-gap",
        means="The same batch, with the same weights, has a much higher loss in eval mode than in train mode.",
        fix="Check the running statistics of normalization layers, and code that uses `self.training`.",
        follows_from=(FaultEffect.BREAKS_EVALUATION, "tiny-norm-batch"),
    ),
    order=1440,
    checks="the same batch in train and eval mode",
    needs=[needs.probe(EvalModeProbe)],
)
def evaluation_gaps(run: Run) -> Finding | None:
    """Find a model that has a much higher loss in eval mode than in train mode, on the same batch."""
    for probe in run.probes(EvalModeProbe):
        train, evaluated = probe.train_loss, probe.eval_loss
        if train is None or evaluated is None or not math.isfinite(train):
            continue
        is_far = evaluated > _RATIO * abs(train) and evaluated - train > _DIFFERENCE
        if (is_far or not math.isfinite(evaluated)) and probe.step + 1 >= _steps_to_settle(run):
            return _gap_finding(probe, train, evaluated)
    return None


def _steps_to_settle(run: Run) -> float:
    """Return after how many steps even the slowest running statistics should match the data."""
    slowest = 0.0
    for structure in run.structures():
        for module in structure.modules:
            momentum = module.settings.get("momentum")
            if module.has_start_statistics is not None and isinstance(momentum, float) and momentum > 0:
                slowest = max(slowest, _TIMES_TO_SETTLE / momentum)
    return slowest


def _random_finding(probe: EvalModeProbe, op: RandomOp, count: int, severity: Severity) -> Finding:
    losses = f"the same batch gives {_format_loss(probe.eval_loss)} and then {_format_loss(probe.eval_again)}"
    more = f"; {plural(count - 1, 'more op')} {'does' if count == 2 else 'do'} the same" if count > 1 else ""
    is_error = severity is Severity.ERROR
    return Finding(
        rule="stochastic-eval",
        severity=severity,
        confidence=0.95 if is_error else 0.6,
        step=probe.step,
        phase="eval",
        site=op.site,
        op=op.op,
        source=op.source,
        title=f"{bare_name(op.op)} draws random numbers in eval mode",
        why=f"with every module in eval mode, {losses}{more}",
        fix="pass the mode on: F.dropout(x, p, training=self.training), dropout_p=self.p if self.training else 0.0, or "
        "use nn.Dropout"
        if is_error
        else "if evaluation should be repeatable, use the mean instead of a sample in eval mode, or seed a generator",
        evidence=({"random_ops": [object_of(op)], "eval_loss": probe.eval_loss, "again": probe.eval_again},),
    )


def _gap_finding(probe: EvalModeProbe, train: float, evaluated: float) -> Finding:
    return error(
        rule="train-eval-gap",
        confidence=0.8,
        step=probe.step,
        phase="eval",
        title="the model behaves differently in eval mode",
        why=f"the same batch, with the same weights, has the loss {format_short(train)} in train mode and "
        f"{_format_loss(evaluated)} in eval mode; only running statistics, dropout and code that uses self.training "
        "differ",
        fix="check the running statistics of normalization layers, and code that runs in only one of the two modes",
        evidence=({"train_loss": train, "eval_loss": evaluated},),
    )


def _format_loss(loss: object) -> str:
    return format_short(loss) if isinstance(loss, float) and math.isfinite(loss) else str(loss)
