"""Curves along the steps: the loss with its anomalies, norms, loss scale, skipped steps and learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.charts import Curve, Trace, chart, figure, line, marks, vertical_line
from roundoff.report.loss_curve import loss_sentence
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.run_page.section import Section
from roundoff.runs import CachedRun, ExceptionDetail, JsonValue, Metrics, Severity

MAX_MARKS_OF_NORMS = 300
_WHY_NOT_ALL = (
    "in the first 20, and after them as often as the budget allows; roundoff run --every-step measures all, and lines "
    "join the measured ones."
)


def norms_section(view: RunView) -> Section | None:
    """Draw what was measured of each step, a chart for each kind; None if nothing was."""
    metrics = view.run.metrics()
    charts: list[tuple[Html, str, JsonValue]] = []
    for name, words, traces, y, is_log in (
        ("norms", "The norm of all gradients and the norm of all parameter updates.", _norms(view), "norm", True),
        ("scale", "The loss scale and the skipped steps.", _scale(metrics), "loss scale", True),
        ("rate", "The learning rate of the first parameter group.", _rate(view), "learning rate", False),
    ):
        if traces:
            axis: JsonValue = {"type": "log", "exponentformat": "power"} if is_log else {"rangemode": "tozero"}
            place = chart(name, words=words, height=260)
            charts.append((place, name, figure(traces, x="step", y=y, yaxis=axis)))
    if not charts:
        return None
    num_skipped = sum(each.skipped for each in metrics)
    skipped = [tag("p", f"{num_skipped} of {len(metrics)} steps were skipped.")] if num_skipped else []
    measured = sum(each.grad_norm is not None for each in metrics)
    if 0 < measured < len(metrics):
        words = f"Norms were measured in {measured} of {len(metrics)} steps: {_WHY_NOT_ALL}"
        skipped.append(tag("p", words, class_="faint"))
    places = tag("div", *(place for place, _, _ in charts), class_="charts")
    return Section(
        key="norms",
        title="Norms, loss scale and learning rate",
        short="Norms",
        body=join_html(*skipped, places),
        data={name: value for _, name, value in charts},
    )


def _norms(view: RunView) -> list[Trace]:
    metrics, curves = view.run.metrics(), []
    steps = [each.step for each in metrics]
    if view.reference is not None:
        reference = view.reference.metrics()
        of_reference = {each.step: each.grad_norm for each in reference}
        curves.append(_curve("gradients of the reference", of_reference, colour="--reference", dash="dot"))
    curves.append(Curve(name="gradients", steps=steps, values=[each.grad_norm for each in metrics]))
    updates = [each.update_norm for each in metrics]
    curves.append(Curve(name="updates", steps=steps, values=updates, colour="--second"))
    return [line(curve) for curve in curves if not curve.is_empty]


def _scale(metrics: list[Metrics]) -> list[Trace]:
    curve = Curve(
        name="loss scale",
        steps=[each.step for each in metrics],
        values=[each.loss_scale for each in metrics],
    )
    skipped = [each for each in metrics if each.skipped][:MAX_MARKS_OF_NORMS]
    if curve.is_empty and not skipped:
        return []
    points = [(each.step, each.loss_scale or 1.0, f"step {each.step} was skipped") for each in skipped]
    lines = [] if curve.is_empty else [line(curve)]
    return [*lines, *([marks("skipped", points, colour="--bad", symbol="x")] if points else [])]


def _rate(view: RunView) -> list[Trace]:
    found = []
    sides = [("learning rate", view.run, "--accent", "solid")]
    if view.reference is not None:
        sides.insert(0, ("reference", view.reference, "--reference", "dot"))
    for name, run, colour, dash in sides:
        metrics = run.metrics()
        values = [each.lr for each in metrics]
        found.append(Curve(name=name, steps=[each.step for each in metrics], values=values, colour=colour, dash=dash))
    return [line(curve) for curve in found if not curve.is_empty]


MAX_MARKS = 300
MAX_VERTICAL_LINES = 4
"""At most this many findings get a line across the chart; more would hide it."""


def loss_section(view: RunView) -> Section | None:
    """Draw the loss; None if the run has none."""
    by_step = _losses(view.run)
    if not by_step:
        return None
    values = list(by_step.values())
    anomalies = _anomalies(view, by_step)
    shapes, notes = _findings(view)
    return Section(
        key="loss",
        title="Loss",
        body=join_html(
            tag("p", f"{loss_sentence(values).capitalize()}."), chart("loss", words=_words(view), height=360)
        ),
        data={
            "loss": figure(
                [*_curves(view), *anomalies],
                x="step",
                y="loss",
                shapes=shapes,
                annotations=notes,
                yaxis=_yaxis(view),
            )
        },
        thinned=_omissions(view),
    )


def _yaxis(view: RunView) -> JsonValue:
    """Return an axis without numbers if no curve gives it any: crosses alone stand at the top, at no value."""
    return {} if _curves(view) else {"range": [-1, 0.05], "showticklabels": False}


def _losses(run: CachedRun) -> dict[int, float]:
    return {metrics.step: metrics.loss for metrics in run.metrics() if metrics.loss is not None}


def _curves(view: RunView) -> list[Trace]:
    found = []
    if view.reference is not None:
        found.append(_curve("reference", _losses(view.reference), colour="--reference"))
    found.append(_curve("loss" if view.reference is None else "candidate", _losses(view.run), colour="--accent"))
    evaluated = {metrics.step: metrics.eval_loss for metrics in view.run.metrics() if metrics.eval_loss is not None}
    if evaluated:
        found.append(_curve("evaluation", evaluated, colour="--second"))
    return [line(curve) for curve in found if not curve.is_empty]


def _curve(name: str, values: Mapping[int, float | None], *, colour: str, dash: str = "solid") -> Curve:
    return Curve(name=name, steps=list(values), values=list(values.values()), colour=colour, dash=dash)


def _anomalies(view: RunView, losses: Mapping[int, float]) -> list[Trace]:
    """Return the marks of what the watch saw, and of non-finite losses, which are above the curves."""
    above = _above(losses.values(), () if view.reference is None else _losses(view.reference).values())
    points: list[tuple[int, float | None, str]] = []
    for rank, anomaly in view.run.anomalies()[:MAX_MARKS]:
        name = f" {anomaly.name}" if anomaly.name else ""
        when = f"{anomaly.detail_as(ExceptionDetail).when} ".replace("in ", "")
        words = f"{when}step {anomaly.step}: {anomaly.kind}{name}{f', rank {rank}' if rank else ''}"
        points.append((anomaly.step, _height(losses.get(anomaly.step), above), words))
    seen = {step for step, _, _ in points}
    bad = [step for step, value in losses.items() if not math.isfinite(value) and step not in seen]
    points += [(step, above, f"step {step}: loss {losses[step]}") for step in bad[: MAX_MARKS - len(points)]]
    return [marks("anomaly", points, colour="--bad", symbol="x")] if points else []


def _above(*curves: Iterable[float]) -> float:
    """Return a height above all curves."""
    finite = [value for curve in curves for value in curve if math.isfinite(value)] or [0.0]
    return max(finite) + 0.05 * (max(finite) - min(finite))


def _height(value: float | None, above: float) -> float:
    return value if value is not None and math.isfinite(value) else above


def _findings(view: RunView) -> tuple[list[JsonValue], list[JsonValue]]:
    """Return lines at the steps of the first findings, with their rules."""
    by_step = {
        finding.step: finding.rule
        for finding in reversed(view.findings)
        if finding.step is not None and finding.severity is not Severity.NOTE
    }
    pairs = [
        vertical_line(step, rule, colour="--bad") for step, rule in list(reversed(by_step.items()))[:MAX_VERTICAL_LINES]
    ]
    return [shape for shape, _ in pairs], [note for _, note in pairs]


def _words(view: RunView) -> str:
    against = " of both runs" if view.reference is not None else ""
    crosses = "crosses mark anomalies (non-finite values at the top)"
    return f"The loss{against} along the steps; {crosses}, dotted lines mark findings."


def _omissions(view: RunView) -> list[str]:
    notes = []
    metrics: list[Metrics] = view.run.metrics()
    if len(metrics) > 2000:
        notes.append(f"{len(metrics)} steps are drawn as the lowest and the highest value of each interval.")
    if len(view.run.anomalies()) > MAX_MARKS:
        notes.append(f"Only the first {MAX_MARKS} of {len(view.run.anomalies())} anomalies are marked.")
    if len(view.run.ranks) > 1:
        notes.append(f"The curves are those of rank 0 of {len(view.run.ranks)} ranks.")
    return notes
