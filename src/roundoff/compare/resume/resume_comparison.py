"""Compares a resumed run with the run that saved its checkpoint: what was not restored, and how the losses drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.compare.resume.compared_part import (
    ComparedPart,
    Restoration,
    ResumePart,
    as_before,
    lost,
    unknown,
)
from roundoff.compare.resume.course_parts import (
    LossDrift,
    data_part,
    data_shift,
    loss_drift,
    rate_shift,
    schedule_part,
    step_part,
)
from roundoff.compare.resume.seam import Seam, find_seam
from roundoff.compare.resume.state_parts import loss_scale_part, state_parts
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.errors import CompareError
from roundoff.runs import EpochDetail, Run
from roundoff.words import join_words

_TOLERANCE = 1e-3
"""The first losses may differ by this share where everything else is the same: ops that add in another order."""
_ORDER = list(ResumePart)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ResumeComparison(ShownComparison):
    """What a resumed run has of the run that it goes on with."""

    reference: str
    candidate: str
    seam: Seam
    parts: tuple[ComparedPart, ...]
    """Everything that was compared, the gravest kind first."""
    drift: LossDrift | None
    """How the losses compare from the seam on; None if no step of both has one."""

    @property
    def lost(self) -> list[ComparedPart]:
        """What was not restored."""
        return [part for part in self.parts if part.answer is Restoration.LOST]

    @property
    def differs(self) -> bool:
        """Whether something was not restored."""
        return bool(self.lost)


def compare_resumption(run: Run, resumed: Run, *, at: int | None = None, rank: int = 0) -> ResumeComparison:
    """Compare a resumed run, from its first step on, with the run that it was resumed from.

    Args:
        run: went through, or was stopped after it had saved a checkpoint.
        resumed: loaded that checkpoint.
        at: the step of `run` that is the first one of `resumed`; by default it is found.
        rank: the rank to compare.

    Raises:
        CompareError: the second run was not resumed from the first.
    """
    if run.path.resolve() == resumed.path.resolve():
        raise CompareError.explain("A run cannot be its own resumption.", fix="name the two runs.")
    seam = find_seam(run, resumed, at=at, rank=rank)
    metrics, resumed_metrics = run.metrics(rank=rank), resumed.metrics(rank=rank)
    if not resumed_metrics:
        raise CompareError.explain(f"'{resumed.path.name}' has no step.", fix="let it train for some steps.")
    drift = loss_drift(seam, metrics, resumed_metrics)
    data, rates = data_shift(seam, run, resumed, rank=rank), rate_shift(seam, metrics, resumed_metrics)
    parts = [*state_parts(seam, run, resumed, rank=rank), loss_scale_part(seam, metrics, resumed_metrics)]
    if data is not None and rates and data.shift == rates:
        parts.append(step_part(seam, rates))
    else:
        parts += [schedule_part(seam, run, resumed, rank=rank), data_part(seam, run, data, rank=rank)]
    parts.append(_generators(seam, run, parts, drift, rank))
    parts.append(_losses(seam, parts, drift))
    return ResumeComparison(
        reference=str(run.path),
        candidate=str(resumed.path),
        seam=seam,
        parts=tuple(sorted(parts, key=lambda part: _ORDER.index(part.part))),
        drift=drift,
    )


def _generators(
    seam: Seam, run: Run, others: Sequence[ComparedPart], drift: LossDrift | None, rank: int
) -> ComparedPart:
    """Compare random generators; whether another state matters is decided by the losses."""
    part = ResumePart.GENERATORS
    if seam.reference is None or seam.candidate is None:
        return unknown(part, "the state of one side is not known")
    known = seam.candidate.generators
    different = [name for name, number in seam.reference.generators.items() if known.get(name, number) != number]
    if not different:
        return as_before(part, f"{join_words(list(seam.reference.generators))} are the same")
    if seam.is_as_saved:
        return unknown(part, "the run ended when it had saved, and a loader that begins draws from them")
    of_torch = [name for name in different if name not in ("numpy", "python")]
    names = join_words(of_torch or different)
    if drift is not None and drift.is_identical:
        text = f"the state of {join_words(different)} is another, and no loss depends on it"
        return ComparedPart(part=part, answer=Restoration.UNUSED, text=text)
    users = _random_users(run, rank) if of_torch else []
    if not users and any(other.answer is Restoration.LOST for other in others):
        return unknown(part, f"the state of {names} is another; whether a loss depends on it cannot be seen")
    by = f", from which {join_words(users, at_most=3)} draw" if users else ""
    text = f"the generators were not restored: the state of {names} is another{by}"
    fix = "save torch.get_rng_state() and the states of numpy's and Python's generators, and set them last of all"
    return lost(part, text, fix=fix, generators=list(different))


def _random_users(run: Run, rank: int) -> list[str]:
    """Return what draws random numbers in the training, as far as modules and loaders tell."""
    structure = next(iter(run.structures(rank=rank)), None)
    found = [
        module.kind
        for module in (structure.modules if structure is not None else ())
        if any(_is_positive(module.settings.get(key)) for key in ("p", "dropout", "drop_prob", "dropout_p"))
    ]
    samplers = [call.detail.sampler for call in run.calls(rank=rank) if isinstance(call.detail, EpochDetail)]
    found += [sampler for sampler in samplers if sampler is not None and "Random" in sampler]
    return list(dict.fromkeys(found))


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _losses(seam: Seam, others: Sequence[ComparedPart], drift: LossDrift | None) -> ComparedPart:
    """Say how the losses compare; a difference that nothing else explains is one of its own."""
    part = ResumePart.LOSSES
    if drift is None:
        return unknown(part, "the run has no loss after the seam")
    if drift.is_identical:
        return as_before(part, f"identical in {drift.num_steps} of {drift.num_steps} steps")
    text = (
        f"{drift.candidate:.6g} against {drift.reference:.6g} at step {drift.first_different}, and up to "
        f"{100 * drift.largest_relative:.2g} % apart in {drift.num_steps} steps"
    )
    if any(other.answer is Restoration.LOST for other in others):
        return ComparedPart(part=part, answer=Restoration.DRIFTS, text=text)
    if drift.early_relative <= _TOLERANCE:
        return as_before(part, text)
    text = f"the losses differ, although all that was compared was restored: {text}"
    fix = "look for state that no checkpoint holds: attributes of modules, counters of the loop, caches, a sampler"
    return lost(part, text, fix=fix, step=drift.first_different, was=drift.reference, now=drift.candidate)
