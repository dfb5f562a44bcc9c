"""Measures one step of a training in fp32, once per bisection, to know whom to suspect first."""

from __future__ import annotations

from roundoff.errors import BisectError, TrialError
from roundoff.experiments.bisect_changes import SubstitutedSites
from roundoff.experiments.bisect_options import BisectEvent, OnEvent
from roundoff.experiments.candidates import Candidates, candidates_from_listing
from roundoff.experiments.plan_measuring import measuring_task
from roundoff.experiments.trials import Trials, log_of
from roundoff.precision import Recipe
from roundoff.runs import to_json
from roundoff.runs.atomic import write_atomically
from roundoff.runs.plain_json import read_json_object
from roundoff.sensitivity.sensitivity import Sensitivity
from roundoff.switches import read_listing

_STEPS = (2, 0)
"""The first step tells little where something starts at zero, but a later one may never come."""


def measured_step(trials: Trials, *, fmt: str, on_event: OnEvent) -> Sensitivity | None:
    """Return the measured step of a training, kept or measured now; None if it cannot be measured, which is told."""
    path = trials.folder.path / "sensitivity.json"
    if path.exists():
        on_event(BisectEvent(what="one step measured", verdict="", is_new=False))
        return Sensitivity.from_object(read_json_object(path))
    why = ""
    for step in _STEPS:
        task = measuring_task(trials.subject, formats=(fmt,), step=step, folder=trials.folder.path / "measured")
        try:
            measured: Sensitivity = trials.run(task).sensitivity
        except TrialError as error:
            why = why or str(error).partition("why: ")[2].partition("\n")[0]
            continue
        write_atomically(path, to_json(measured.to_object()).encode())
        on_event(BisectEvent(what=f"step {step} measured in fp32, to know whom to suspect first", verdict=""))
        return measured
    on_event(BisectEvent(what="no step could be measured, so nobody is suspected first", verdict=why))
    return None


def listed_ops(trials: Trials, change: SubstitutedSites, *, on_event: OnEvent) -> Candidates:
    """Return the ops of one step, those that differ most from the other implementation first."""
    file = (trials.folder.path / "listing.json").absolute()
    is_new = not file.exists()
    if is_new:
        result = trials.apart(change.listing(str(file)))
        if result.exit_code and not file.exists():
            raise BisectError.explain(
                f"`{trials.subject.name}` fails by itself: exit code {result.exit_code}.",
                why=f"it ended before its first step was over{log_of(result.folder)}",
                fix="see that it runs.",
            )
    candidates = candidates_from_listing(read_listing(file))
    number = sum(map(len, candidates.ops.values()))
    on_event(BisectEvent(what=f"{number} ops of one step, each beside {change.good_name}", verdict="", is_new=is_new))
    return candidates


def narrow_format(recipe: Recipe) -> str:
    """Return the format that a recipe gives to what it narrows."""
    return recipe.operands.forward if recipe.compute == "operands" else recipe.compute_format


def takes_ops(recipe: Recipe) -> bool:
    """Whether a recipe can treat an op of a site in its own way."""
    return recipe.compute not in ("autocast", "fixed") and recipe.arithmetic != "native"
