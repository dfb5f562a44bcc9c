"""Axes that are taken for others: reshapes that mix places and classes, a softmax or a code along the wrong axis."""

from __future__ import annotations

from functools import partial

from roundoff.diagnose import needs
from roundoff.diagnose.model.batch_statistics import is_over_batch
from roundoff.diagnose.rule import Code, error, rule
from roundoff.runs import AxesProbe, BatchMixingProbe, ConfusedAxes, Finding, Run
from roundoff.words import join_names

_LOSSES = ("cross_entropy", "nll_loss")


@rule(
    Code(
        name="axes-confused",
        means="One axis of a tensor is taken for another: a `view` where `permute` was needed, so that rows mix "
        "classes and places; a softmax or a norm along the wrong axis; a positional code that differs between samples "
        "instead of places.",
        fix="Move axes with `permute` or `transpose` before `reshape`; name the axis of a softmax or norm from the "
        "end, `dim=-1`; give a positional code the axes `(1, places, features)`.",
    ),
    order=452,
    checks="reshapes, softmaxes, norms and positional codes along the wrong axis",
    needs=[needs.probe(AxesProbe)],
)
def confused_axes(run: Run) -> Finding | None:
    """Find calls that take one axis for another, by following samples, classes and places through a replayed forward.

    A reshape keeps the order of the numbers: where it seems to move an axis, it mixes it with others. The gradient of
    the scores of one class, and the outputs of a batch that was turned around or of which one sample was changed, show
    what a call really depends on.
    """
    probe = next(iter(run.probes(AxesProbe)), None)
    found = list(probe.found) if probe is not None else []
    for kind in ("classes", "softmax", "positions"):
        for axes in found:
            if axes.kind == kind and probe is not None:
                return _finding(axes, probe.step)
    for mixing in run.probes(BatchMixingProbe):
        if is_over_batch(mixing):
            return _over_batch_finding(mixing)
    return _finding(found[0], probe.step) if probe is not None and found else None


def _finding(axes: ConfusedAxes, step: int) -> Finding:
    title, why, fix = _TEXTS[axes.kind](axes)
    return error(
        rule="axes-confused",
        confidence=0.85 if axes.kind == "reshape" else 0.95,
        step=step,
        phase="forward",
        site=axes.site,
        source=axes.source,
        title=title,
        why=why,
        fix=fix,
        evidence=({"kind": axes.kind, "function": axes.function, "given": list(axes.given), "made": list(axes.made)},),
    )


def _reshape_text(axes: ConfusedAxes) -> tuple[str, str, str]:
    axis = axes.axis or 0
    return (
        f"{axes.function} mixes axis {axis} with others",
        f"{axes.function} makes {axes.given} into {axes.made} and keeps the order of the numbers, so that the axis of "
        f"size {axes.given[axis]} after it is not the one before it: {_number_at(axes)}; {axes.reader} then uses the "
        "result as if it were",
        f"move the axis with permute or transpose, which move the numbers too: {axes.function} only cuts them anew",
    )


def _number_at(axes: ConfusedAxes) -> str:
    """Say from where the second number along the axis comes."""
    axis = axes.axis or 0
    size = axes.given[axis]
    at = [0] * len(axes.made)
    at[list(axes.made).index(size)] = 1
    place = 0
    for index, length in zip(at, axes.made, strict=True):
        place = place * length + index
    came = []
    for length in reversed(axes.given):
        place, index = divmod(place, length)
        came.append(index)
    return f"what is at {tuple(at)} after it was at {tuple(reversed(came))} before"


def _classes_text(axes: ConfusedAxes) -> tuple[str, str, str]:
    return (
        f"the rows that {axes.function} gets mix classes and places",
        f"the scores have shape {axes.given}, and {axes.function} gets {axes.made}; the gradient of what it takes "
        f"for the scores of class 0 leads to several classes of axis {axes.axis}: a reshape did not move that axis",
        f"move the class axis last before the reshape: scores.movedim({axes.axis}, -1).reshape(-1, {axes.made[1]}); or "
        f"pass the scores as they are, {axes.function} takes classes on axis 1",
    )


def _softmax_text(axes: ConfusedAxes) -> tuple[str, str, str]:
    is_loss = axes.reader in _LOSSES
    right = 1 if is_loss else len(axes.given) - 1
    what = "the probabilities of a sample" if is_loss else "the weights of a query"
    return (
        f"a softmax is taken over axis {axes.axis} instead of axis {right}",
        f"of the shape {axes.given}, {axes.reader} uses axis {right} as {'classes' if is_loss else 'what is weighed'}, "
        f"but {what} do not add up to 1: those along axis {axes.axis} do",
        f"take the softmax over {'the classes, dim=1' if is_loss else 'what is weighed, dim=-1'}",
    )


def _positions_text(axes: ConfusedAxes) -> tuple[str, str, str]:
    return (
        "a code is added along the batch instead of along the places",
        f"{axes.function} combines samples of shape {axes.given} with a code of shape {axes.made}, whose first axis "
        "differs from sample to sample; with the batch turned around, a sample gets another output",
        f"give the code the places' axis: (1, {axes.given[1]}, ...), or pass the samples with time first",
    )


_TEXTS = {
    "reshape": _reshape_text,
    "classes": _classes_text,
    "softmax": _softmax_text,
    "positions": _positions_text,
}


def _over_batch_finding(probe: BatchMixingProbe) -> Finding:
    others = join_names([str(place) for place in probe.changed], at_most=5)
    found = partial(error, rule="axes-confused", confidence=0.95, step=probe.step, phase="forward")
    return found(
        site=probe.site,
        source=probe.source,
        title=f"{probe.function} is taken over the batch",
        why=f"in eval mode, changing only sample {probe.sample} also changes the outputs of sample {others}, from "
        f"{probe.function} on: it runs along axis 0, which counts samples",
        fix=f"take {probe.function} over an axis of each sample: dim=-1",
        evidence=({"sample": probe.sample, "changed": list(probe.changed), "function": probe.function},),
    )
