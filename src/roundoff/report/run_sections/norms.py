"""How the training went beside its loss: gradient and update norms, loss scale and skipped steps, learning rate."""

from __future__ import annotations

from roundoff.report.charts import Curve, Trace, chart, figure, line, marks
from roundoff.report.markup import Html, joined, tag
from roundoff.report.run_view import RunView
from roundoff.report.section import Section
from roundoff.runs import JsonValue, Metrics

MOST_MARKS = 300


def norms_section(view: RunView) -> Section | None:
    """Draw what each step came to, a chart for each kind that the run tells; None if it tells none."""
    metrics = view.run.metrics()
    charts: list[tuple[Html, str, JsonValue]] = []
    for name, words, traces, y, is_log in (
        ("norms", "Norms of all gradients and of the change of all parameters.", _norms(view), "norm", True),
        ("scale", "The loss scale, and the steps that were skipped.", _scale(metrics), "loss scale", True),
        ("rate", "The learning rate of the first group.", _rate(view), "learning rate", False),
    ):
        if traces:
            axis: JsonValue = {"type": "log", "exponentformat": "power"} if is_log else {"rangemode": "tozero"}
            place = chart(name, words=words, height=260)
            charts.append((place, name, figure(traces, x="step", y=y, yaxis=axis)))
    if not charts:
        return None
    num_skipped = sum(each.skipped for each in metrics)
    skipped = [tag("p", f"{num_skipped} of {len(metrics)} steps were skipped.")] if num_skipped else []
    places = tag("div", *(place for place, _, _ in charts), class_="charts")
    return Section(
        key="norms",
        title="Norms, loss scale and learning rate",
        short="Norms",
        body=joined(*skipped, places),
        data={name: value for _, name, value in charts},
    )


def _norms(view: RunView) -> list[Trace]:
    metrics, curves = view.run.metrics(), []
    steps = [each.step for each in metrics]
    if view.reference is not None:
        theirs = view.reference.metrics()
        their_steps, values = [each.step for each in theirs], [each.grad_norm for each in theirs]
        name = "gradients of the reference"
        curves.append(Curve(name=name, steps=their_steps, values=values, colour="--reference", dash="dot"))
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
    skipped = [each for each in metrics if each.skipped][:MOST_MARKS]
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
