"""Losses of evaluations: they turn up while training goes on falling, or are not finite at all."""

from __future__ import annotations

import math
import statistics

from roundoff.diagnose.numbers import plural, short
from roundoff.runs import Finding, Metrics, Run, Severity

_FEWEST = 5
_FEWEST_AFTER = 3
_RISE = 1.1


def rising_eval_losses(run: Run) -> list[Finding]:
    """Find since when evaluation has been getting worse while training got better; or what broke it."""
    metrics = run.metrics(rank=0)
    looks = [metric for metric in metrics if metric.eval_loss is not None]
    return _broken(run, metrics, looks) or _rising(metrics, looks)


def _broken(run: Run, metrics: list[Metrics], looks: list[Metrics]) -> list[Finding]:
    bad = next((look for look in looks if not math.isfinite(_eval(look))), None)
    if bad is None or any(not math.isfinite(m.loss) for m in metrics if m.loss is not None and m.step <= bad.step):
        return []
    buffers = sorted({str(anomaly.name) for _, anomaly in run.anomalies() if anomaly.kind == "buffer"})
    why = f"the buffer {buffers[0]} is not finite" if buffers else "all losses of training up to it are finite"
    return [
        Finding(
            rule="eval-loss-rising",
            severity=Severity.ERROR,
            confidence=0.9,
            step=bad.step,
            phase="eval",
            title=f"the evaluation loss is {bad.eval_loss}",
            why=f"{why}: it is the forward in eval mode that breaks, or its data",
            fix="look for NaN in the evaluation data, and at what the model does in eval mode only: running "
            "statistics, batches of other lengths",
            evidence=({"eval_loss": bad.eval_loss, "buffers": [*buffers]},),
        )
    ]


def _rising(metrics: list[Metrics], looks: list[Metrics]) -> list[Finding]:
    if len(looks) < _FEWEST:
        return []
    best = min(range(len(looks)), key=lambda place: _eval(looks[place]))
    after = [_eval(look) for look in looks[best + 1 :]]
    lowest, last = _eval(looks[best]), statistics.median(after[-_FEWEST_AFTER:]) if after else 0.0
    if len(after) < _FEWEST_AFTER or last <= _RISE * max(lowest, 1e-12):
        return []
    turn = looks[best].step
    before, since = _losses(metrics, until=turn), _losses(metrics, since=turn)
    if not before or not since or statistics.median(since) >= statistics.median(before):
        return []
    return [
        Finding(
            rule="eval-loss-rising",
            severity=Severity.NOTE,
            confidence=0.8,
            step=turn,
            phase="eval",
            title=f"the evaluation loss has been rising since step {turn}",
            why=f"it was {short(lowest)} then and is {short(last)} after {plural(len(after), 'more evaluation')}, "
            f"while the training loss fell from {short(statistics.median(before))} to "
            f"{short(statistics.median(since))}: the model learns the training data by heart",
            fix=f"stop at step {turn}, or regularise: more data, augmentation, dropout, weight decay",
            evidence=({"best_step": turn, "best": lowest, "last": last},),
        )
    ]


def _eval(metric: Metrics) -> float:
    return math.inf if metric.eval_loss is None else metric.eval_loss


def _losses(metrics: list[Metrics], *, since: int = 0, until: float = math.inf) -> list[float]:
    return [m.loss for m in metrics if m.loss is not None and math.isfinite(m.loss) and since <= m.step <= until]
