"""How far a bad value spread, in a sentence."""

from __future__ import annotations

from roundoff.diagnose.bad_step import BadStep
from roundoff.diagnose.origin import Liveness, OriginPlace


def spread_of(bad: BadStep, place: OriginPlace) -> str:
    """Say what the bad value reaches, and up to when everything was fine."""
    noun = "NaN" if place.bad.num_nan else "infinity"
    reached = _reached(place.liveness, is_update=place.phase == "optimizer")
    sentences = [f"The {noun} reaches {_listed(reached)}."] if reached else []
    if not place.liveness.reaches_loss and place.liveness.num_bad_gradients and place.phase == "forward":
        sentences.append("The loss does not show it: what is masked in forward is 0 times NaN in backward.")
    if bad.was_skipped:
        sentences.append("The optimizer's step was skipped, so the weights are as they were.")
    elif bad.was_undone:
        sentences.append("The step was undone: the training went on as if its batch had never come.")
    elif bad.step > 0:
        sentences.append(f"Loss and weights were fine up to step {bad.step - 1}.")
    return " ".join(sentences)


def _reached(liveness: Liveness, *, is_update: bool) -> list[str]:
    found = ["the loss"] if liveness.reaches_loss else []
    if liveness.num_bad_gradients:
        found.append(_share(liveness.num_bad_gradients, liveness.num_gradients, "gradient"))
    if is_update and liveness.num_bad_weights:
        found.append(_share(liveness.num_bad_weights, liveness.num_weights, "weight"))
    if liveness.reaches_statistics:
        found.append("the running statistics of a norm")
    return found


def _share(count: int, total: int, thing: str) -> str:
    if count == total:
        return f"all {total} {thing}s" if total > 1 else f"the only {thing}"
    return f"{count} of {total} {thing}s"


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
