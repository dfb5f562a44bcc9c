"""The rule for NaN and infinity: where they came from, or at least that they are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from roundoff.diagnose.bad_step import BadStep, bad_steps
from roundoff.diagnose.batch_finding import nonfinite_input
from roundoff.diagnose.consequences import loss_without_origin, poisoned_statistics, step_on_bad_gradients
from roundoff.diagnose.loss_scale import overflow_by_scale
from roundoff.diagnose.origin_finding import finding_at
from roundoff.diagnose.weight_growth import update_before
from roundoff.runs import Finding, Run

_NARROW = ("float16", "bfloat16")


def nonfinite_values(run: Run) -> list[Finding]:
    """Find where NaN and infinity came from: one finding for each cause, with its consequences as related ones.

    Steps that loss scaling left out on purpose are silent. A cause that shows again in later steps or on other ranks
    is told once.
    """
    steps = [bad for bad in bad_steps(run) if not bad.is_deliberate]
    from_elsewhere = {bad.step for bad in steps if bad.place is not None and bad.place.kind in ("op", "input")}
    found = [
        _finding(run, bad)
        for bad in steps
        if not (bad.place is not None and bad.place.kind == "collective" and bad.step in from_elsewhere)
    ]
    return _once_each(found)


def first_nonfinite(run: Run) -> Finding | None:
    """Return the finding about the earliest bad value that matters, or None."""
    found = nonfinite_values(run)
    return min(found, key=lambda finding: finding.step or 0) if found else None


def _finding(run: Run, bad: BadStep) -> Finding:
    place = bad.place
    if place is None or place.kind in ("parameter", "state", "collective"):
        main = loss_without_origin(bad)
    elif place.kind == "input":
        main = nonfinite_input(bad, place)
    else:
        main = overflow_by_scale(bad, finding_at(run, bad, place))
    related = [found for found in (step_on_bad_gradients(bad), poisoned_statistics(bad)) if found is not None]
    is_narrow = place is not None and place.bad.dtype in _NARROW  # in a wide format the update itself is the fault
    if main.rule == "overflow" and is_narrow and (update := update_before(run, bad)) is not None:
        related.insert(0, update)
    if bad.was_skipped and bad.has("buffer"):
        statistics = related.pop()  # all that is left of the batch
        return replace(statistics, related=(*related, main))
    return replace(main, related=tuple(other for other in related if other.rule != main.rule))


def _once_each(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding about each place; note on it in how many more steps it shows, if any."""
    kept: dict[tuple[str, str | None, str | None], Finding] = {}
    again: dict[tuple[str, str | None, str | None], set[int]] = {}
    for finding in sorted(findings, key=lambda finding: (finding.step or 0, finding.rank or 0)):
        key = (finding.rule, finding.site, finding.op)
        kept.setdefault(key, finding)
        if finding.step is not None and finding.step != kept[key].step:
            again.setdefault(key, set()).add(finding.step)
    return [
        replace(finding, evidence=(*finding.evidence, {"also_in_steps": sorted(again[key])}))
        if key in again
        else finding
        for key, finding in kept.items()
    ]
