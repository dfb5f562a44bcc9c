"""Compares the settings of two runs, the most suspicious first; here also those of run.json and the loop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from roundoff.compare.settings.data_settings import data_differences
from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind, differing_values
from roundoff.compare.settings.structure_settings import hyperparameter, start_differences, structure_differences
from roundoff.runs import Call, ClipDetail, JsonValue, Run, RunInfo, SchedulerDetail, StepDetail

_CALLS = ("zero_grad", "forward", "backward", "unscale", "clip", "step", "scheduler")
"""The calls whose order matters; others, such as saving, change nothing."""


def differing_settings(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Return what differs between two runs, from their folders alone: the most suspicious first.

    Hyperparameters, the loss, modules and their settings, the recipe, the order of calls, data and its order, start
    values, seeds, ranks, environment, packages, hardware and the command. Names, times and paths are left out. What a
    run does not contain is not compared.
    """
    found = [
        *structure_differences(reference, candidate),
        *loop_differences(reference, candidate),
        *data_differences(reference, candidate),
        *start_differences(reference, candidate),
        *run_differences(reference, candidate),
    ]
    kinds = list(SettingKind)
    return sorted(found, key=lambda difference: (-difference.suspicion, kinds.index(difference.kind)))


def loop_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare what the loops of rank 0 did."""
    reference_calls, candidate_calls = reference.calls(), candidate.calls()
    return [
        *_order(reference_calls, candidate_calls),
        *_modes(reference, candidate),
        *_clipping(reference_calls, candidate_calls),
        *_schedulers(reference_calls, candidate_calls),
        *_learning_rates(
            reference_calls, candidate_calls, has_optimizers=bool(reference.structures() and candidate.structures())
        ),
    ]


def _order(reference: list[Call], candidate: list[Call]) -> Iterator[SettingDifference]:
    """Yield the first step whose calls come in another order; the last step of a run may be incomplete."""
    first, second = _by_step(reference), _by_step(candidate)
    for step in sorted(set(first) & set(second))[:-1][:3]:
        if first[step] != second[step]:
            calls = (", ".join(names) for names in (first[step], second[step]))
            yield SettingDifference(f"calls in step {step}", *calls, kind=SettingKind.LOOP, suspicion=0.85)
            return


def _modes(reference: Run, candidate: Run) -> Iterator[SettingDifference]:
    """Yield the first step in which only one loop calls eval() after the update: it evaluates in training mode, or not.

    A loop that calls it after other steps evaluates less often, which is no difference in how.
    """
    first, second = (_by_step(run.calls(), ("step", "eval")) for run in (reference, candidate))
    if any("eval" in names for names in first.values()) and any("eval" in names for names in second.values()):
        return
    for step in sorted(set(first) & set(second))[:-1]:
        has_eval = ["eval" in names[names.index("step") :] if "step" in names else None
                    for names in (first[step], second[step])]  # fmt: skip
        if None not in has_eval and has_eval[0] != has_eval[1]:
            pairs = zip(has_eval, (reference, candidate), (candidate, reference), strict=True)
            modes = ("in eval mode" if is_eval else _without_eval(run, other, step) for is_eval, run, other in pairs)
            what = f"evaluation after step {step}"
            yield SettingDifference(what, *modes, kind=SettingKind.EVALUATION, suspicion=0.8)
            return


def _without_eval(run: Run, other: Run, step: int) -> str:
    """Say what is known about the evaluation of a loop that does not call eval(), unlike that of the other run."""
    has_loss = any(metrics.eval_loss is not None for metrics in run.metrics())
    if has_loss or any(run.iter_events(step=step, phase="eval")):
        return "without eval()"
    if any(other.iter_events(step=step, phase="eval")):
        return "none"
    return "no eval(): in training mode, or not at all"  # a watch does not see the ops of an evaluation


def _by_step(calls: list[Call], wanted: tuple[str, ...] = _CALLS) -> dict[int, list[str]]:
    """Return the calls of each step in order; repeated calls count once."""
    found: dict[int, list[str]] = {}
    for step, group in itertools.groupby(calls, key=lambda call: call.step):
        names = [call.call for call in group if call.call in wanted and not call.detail_as(SchedulerDetail).initial]
        found.setdefault(step, []).extend(name for name, _ in itertools.groupby(names))
    return found


def _clipping(reference: list[Call], candidate: list[Call]) -> Iterator[SettingDifference]:
    first, second = (
        next((norm for call in calls if (norm := call.detail_as(ClipDetail).max_norm) is not None), None)
        for calls in (reference, candidate)
    )
    if first != second:
        yield hyperparameter("max_norm of clipping", first, second)


def _schedulers(reference: list[Call], candidate: list[Call]) -> Iterator[SettingDifference]:
    first, second = (
        next((call.detail.scheduler for call in calls if isinstance(call.detail, SchedulerDetail)), None)
        for calls in (reference, candidate)
    )
    if first != second:
        yield hyperparameter("scheduler", first, second)


def _learning_rates(
    reference: list[Call], candidate: list[Call], *, has_optimizers: bool
) -> Iterator[SettingDifference]:
    """Yield the first step whose learning rate differs, unless it is the first one and the optimizers show it."""
    first, second = (
        {call.step: list(lr) for call in calls if (lr := call.detail_as(StepDetail).lr)}
        for calls in (reference, candidate)
    )
    common = sorted(set(first) & set(second))
    different = next((step for step in common if first[step] != second[step]), None)
    if different is not None and not (has_optimizers and different == common[0]):
        yield hyperparameter(f"learning rate from step {different} on", first[different], second[different])


_SEED = "torch.seed"
_SHOWN_ELSEWHERE = (_SEED, "OMP_NUM_THREADS")
"""Entries of the environment that are compared elsewhere: the seed, and the threads (as torch.num_threads)."""
_FLAGS = {
    "torch.default_dtype": 0.9,
    "torch.float32_matmul_precision": 0.6,
    "torch.cuda.matmul.allow_tf32": 0.6,
    "torch.cudnn.allow_tf32": 0.6,
    "torch.deterministic_algorithms": 0.3,
    "torch.num_threads": 0.2,
    "torch.num_interop_threads": 0.05,
    "PYTHONHASHSEED": 0.15,
}
"""How suspicious a difference in these is; for others `_OTHER_FLAG`."""
_OTHER_FLAG = 0.3
_PACKAGES = {"torch": 0.4, "transformers": 0.35, "roundoff": 0.05, "python": 0.1, "pyarrow": 0.02, "safetensors": 0.02}
_OTHER_PACKAGE = 0.2
_HARDWARE = {"accelerator": 0.4, "cpu_capability": 0.25, "machine": 0.25, "accelerators": 0.1}
"""The hardware facts that can change a number; the others only affect speed."""


def run_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare what the runs say about themselves; names, times and paths are left out."""
    reference_info, candidate_info = reference.info, candidate.info
    return [
        *_one("recipe", reference_info.recipe, candidate_info.recipe, kind=SettingKind.RECIPE, suspicion=0.85),
        *_one("seed", _seed(reference_info), _seed(candidate_info), kind=SettingKind.SEED, suspicion=0.45),
        *_one("ranks", reference_info.ranks, candidate_info.ranks, kind=SettingKind.RANKS, suspicion=0.7),
        *_environment(reference_info, candidate_info),
        *_mapping(
            "version of ", reference_info.packages, candidate_info.packages, kind=SettingKind.PACKAGE, ranks=_PACKAGES
        ),
        *_hardware(reference_info, candidate_info),
        *_command(reference_info, candidate_info),
        *_one("commit", reference_info.git_commit, candidate_info.git_commit, kind=SettingKind.COMMAND, suspicion=0.3),
    ]


def _seed(info: RunInfo) -> JsonValue:
    """Return the seed when the first step began; the script may have changed the one given at the start."""
    return info.environment.get(_SEED, info.seed)


def _environment(reference: RunInfo, candidate: RunInfo) -> Iterator[SettingDifference]:
    if not reference.environment or not candidate.environment:  # written by an older version, or stopped before a step
        return
    for name, first, second in differing_values(
        reference.environment, candidate.environment, leave_out=_SHOWN_ELSEWHERE
    ):
        yield SettingDifference(
            name,
            first if name in reference.environment else "not set",
            second if name in candidate.environment else "not set",
            kind=SettingKind.ENVIRONMENT,
            suspicion=_FLAGS.get(name, _OTHER_FLAG),
        )


def _hardware(reference: RunInfo, candidate: RunInfo) -> Iterator[SettingDifference]:
    first = {name: reference.hardware.get(name) for name in _HARDWARE}
    second = {name: candidate.hardware.get(name) for name in _HARDWARE}
    return _mapping("", first, second, kind=SettingKind.HARDWARE, ranks=_HARDWARE)


def _mapping(
    before: str,
    reference: Mapping[str, JsonValue],
    candidate: Mapping[str, JsonValue],
    *,
    kind: SettingKind,
    ranks: Mapping[str, float],
) -> Iterator[SettingDifference]:
    for name, first, second in differing_values(reference, candidate):
        suspicion = ranks.get(name, _OTHER_PACKAGE)
        yield SettingDifference(before + name, first, second, kind=kind, suspicion=suspicion)


def _one(
    what: str, reference: JsonValue, candidate: JsonValue, *, kind: SettingKind, suspicion: float
) -> Iterator[SettingDifference]:
    if reference != candidate:
        yield SettingDifference(what, reference, candidate, kind=kind, suspicion=suspicion)


def _command(reference: RunInfo, candidate: RunInfo) -> Iterator[SettingDifference]:
    """Yield the arguments that differ, except paths and names."""
    first, second = _arguments(reference.command), _arguments(candidate.command)
    for name, _, _ in differing_values(first, second):
        values = (side.get(name, "not given") for side in (first, second))
        yield SettingDifference(f"argument {name}", *values, kind=SettingKind.COMMAND, suspicion=0.35)


_NAMES = ("name", "run-name", "to", "out", "output", "output-dir", "log-dir", "logdir", "save", "save-dir", "run-id")


def _arguments(command: tuple[str, ...]) -> dict[str, JsonValue]:
    """Return options by name and other arguments by place, without paths and names of runs.

    >>> _arguments(("python", "/home/a/train.py", "--lr", "0.1", "--name", "second", "--fast"))
    {'--lr': '0.1', '--fast': True}
    """
    found: dict[str, JsonValue] = {}
    words = [word for part in command for word in (part.split("=", 1) if part.startswith("--") else [part])]
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        has_value = place < len(words) and not words[place].startswith("--")
        if word.startswith("--"):
            value: JsonValue = words[place] if has_value else True
            place += has_value
            if word[2:].replace("_", "-") not in _NAMES and not _is_path(value):
                found[word] = value
        elif not _is_path(word) and word not in ("python", "python3", "-m"):
            found[f"#{len(found)}"] = word
    return found


def _is_path(value: JsonValue) -> bool:
    return isinstance(value, str) and (
        len(PurePath(value).parts) > 1 or bool(PurePath(value).suffix.strip(".0123456789e"))
    )
