"""Resumed trainings that lost more than their optimizer's state, next to the run that saved their checkpoint."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

from roundoff.compare.resume.compared_part import ResumePart
from roundoff.compare.resume.resume_comparison import compare_resumption
from roundoff.compare.resume.seam import find_by_weights, state_after_load
from roundoff.diagnose import needs
from roundoff.diagnose.resumed import finding_about_resumption
from roundoff.diagnose.rule import Code, rule
from roundoff.errors import RoundoffError
from roundoff.runs import CachedRun, Finding, Run, Severity, StateFacts, states_path

_MAX_FOLDERS = 1000
_MIN_SHARE = 0.5
"""Of the weights that the training began with, so many are those of the checkpoint."""
_NOTED = {ResumePart.DATA, ResumePart.GENERATORS, ResumePart.COPIES, ResumePart.LOSSES}
"""Many trainings that are resumed do without these, knowingly."""


@rule(
    Code(
        name="resume-incomplete",
        means="A training was resumed from a checkpoint, and something of the run that saved it was not restored: some "
        "weights or buffers, the schedule of the learning rate, the loss scale, the step counter, the order of the "
        "data, the generators, an average of the weights.",
        fix="Save and load the `state_dict()` of everything that has one, the step, and the generators. "
        "`roundoff compare --resume RUN RESUMED` shows all that was compared.",
    ),
    order=325,
    checks="what a resumed training has restored",
    needs=[
        needs.some(lambda run: _resumed_state(run), "no checkpoint with the state of an optimizer was loaded"),
        needs.some(lambda run: _saving_run(run), "no run in the same folder saved the checkpoint"),
    ],
)
def incomplete_resumptions(run: Run) -> Finding | None:
    """Find what a training lost that loaded the checkpoint of another run in the same folder, optimizer and all.

    One that loads weights alone may be a new training on purpose.
    """
    saving = _saving_run(run)
    if saving is None or not run.metrics():
        return None
    comparison = compare_resumption(saving, run)
    found = finding_about_resumption(comparison)
    if found is None:
        return None
    is_noted = all(part.part in _NOTED for part in comparison.lost)
    return replace(
        found,
        severity=Severity.NOTE if is_noted else Severity.WARNING,
        step=0,
        title=f"resumed from {saving.path.name}: {found.title}",
    )


def _resumed_state(run: Run) -> StateFacts | None:
    """Return the state that a training began with, if it loaded the state of an optimizer."""
    state = state_after_load(run, rank=0)
    return state if state is not None and any(group.kind == "optimizer" for group in state.groups) else None


def _saving_run(run: Run) -> Run | None:
    """Return the run in the same folder that saved the checkpoint, the latest of several."""
    state = _resumed_state(run)
    if state is None:
        return None
    found: list[tuple[int, str, Run]] = []
    for folder in itertools.islice(run.path.resolve().parent.iterdir(), _MAX_FOLDERS):
        if folder == run.path.resolve() or not states_path(folder, rank=0).is_file():
            continue
        with contextlib.suppress(RoundoffError, OSError):
            other = CachedRun.of(Run.open(folder))
            match = find_by_weights([saved for saved in other.states() if saved.after == "save"], state)
            if match is not None and match[1] > _MIN_SHARE * match[2] and other.info.started < run.info.started:
                found.append((match[1], other.info.started, other))
    return max(found, key=lambda item: item[:2])[2] if found else None
