"""Checkpoints that were read but not loaded, and resumed trainings that lost the state of their optimizer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import rates
from roundoff.diagnose.rule import Code, error, rule, warning
from roundoff.diagnose.step_flow import first_rank
from roundoff.runs import Call, Finding, LoadDetail, Metrics, ReadDetail, Run, StepDetail, object_of
from roundoff.words import join_names

_NUM_COMPARED = 5
"""Losses before and after a load that show whether the training continues or starts over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resumption:
    """A load into a model, followed by a step of an optimizer without state."""

    load: Call
    step: Call
    keys: tuple[str, ...]
    """Keys under which the checkpoint contains the state of an optimizer with the same learning rate."""
    before: Call | None
    """The last step before the load that had state; None at the start of the run."""


@rule(
    Code(
        name="optimizer-state-lost",
        means="Training was resumed from saved weights, but the optimizer started without its state.",
        fix="Save `optimizer.state_dict()` with the weights, and load it too.",
    ),
    order=320,
    checks="optimizer state after a checkpoint was loaded",
    needs=[needs.calls("load", missing="nothing was loaded into a model")],
)
def lost_optimizer_states(run: Run) -> Finding | None:
    """Find weights that were loaded to continue a training, while the optimizer starts without state.

    Fine-tuning also loads weights alone, but at another learning rate. So either the checkpoint contains an optimizer
    state for the present rate that was not loaded, or this run had such a state before and continues with an optimizer
    of the same kind.
    """
    rank = first_rank(run)
    calls, metrics = run.calls(rank=rank), run.metrics(rank=rank)
    for found in _resumptions(calls):
        if found.keys or (found.before is not None and _continues(found, found.before, metrics)):
            return _lost_state_finding(found)
    return None


def _resumptions(calls: Sequence[Call]) -> list[_Resumption]:
    found = []
    load: Call | None = None
    before: Call | None = None
    read: list[Call] = []
    for call in calls:
        if call.call == "read":
            read.append(call)
        elif call.call == "load" and _is_whole(call):
            load = call
        elif call.call == "step":
            if load is not None and call.detail_as(StepDetail).is_fresh:
                keys = [
                    key
                    for known in read
                    if _has_rate_of(known, call)
                    for key in known.detail_as(ReadDetail).optimizer_states
                ]
                found.append(_Resumption(load=load, step=call, keys=tuple(keys), before=before))
            load, read = None, []
            before = before if call.detail_as(StepDetail).is_fresh else call
    return found


def _has_rate_of(read: Call, step: Call) -> bool:
    """Say whether an optimizer whose state was read had, last or initially, the learning rate of this step."""
    known = read.detail_as(ReadDetail).optimizer_rates
    if not known:
        return True
    return any(math.isclose(rate, other) for rate in rates(step) for other in known)


def _is_whole(call: Call) -> bool:
    """Say whether a load filled a model: no key missing, none unexpected."""
    load = call.detail_as(LoadDetail)
    return load.num_keys > 0 and load.num_missing == 0 and load.num_unexpected == 0


def _continues(found: _Resumption, before: Call, metrics: Sequence[Metrics]) -> bool:
    """Say whether the loss continues where it was, with the same kind of optimizer at the same learning rate."""
    if _kind(before) != _kind(found.step) or rates(before) != rates(found.step):
        return False
    losses = {metric.step: metric.loss for metric in metrics if metric.loss is not None}
    start = [loss for step, loss in losses.items() if step < _NUM_COMPARED]
    last = [loss for step, loss in losses.items() if found.step.step - _NUM_COMPARED <= step < found.step.step]
    new = [loss for step, loss in losses.items() if found.step.step <= step < found.step.step + _NUM_COMPARED]
    if not start or not last or not new or found.step.step < 2 * _NUM_COMPARED:
        return False
    return abs(median(new) - median(last)) < abs(median(new) - median(start))


def _kind(call: Call) -> str:
    return str(call.detail_as(StepDetail).optimizer).partition("#")[0]


def _lost_state_finding(found: _Resumption) -> Finding:
    kind, load = _kind(found.step), found.load.detail_as(LoadDetail)
    if found.keys:
        cause = f"the checkpoint contains an optimizer state ({join_names(found.keys)}) that was not loaded"
        fix = f"load it after the optimizer is built: optimizer.load_state_dict(checkpoint['{found.keys[0]}'])"
    else:
        cause = "the optimizer is new, and the state of the one before is gone"
        fix = "save optimizer.state_dict() with the weights, and load it after the optimizer is built"
    return error(
        rule="optimizer-state-lost",
        confidence=0.9 if found.keys else 0.8,
        step=found.step.step,
        phase="optimizer",
        title=f"{kind} continues without its state",
        why=f"all {load.num_keys} keys of {load.into} were loaded before step {found.step.step}, but {cause}: "
        "its averages start from 0",
        fix=fix,
        evidence=({"load": object_of(found.load.detail)}, {"keys": list(found.keys)}),
    )


@rule(
    Code(
        name="checkpoint-not-loaded",
        means="A load with `strict=False` loaded nothing or almost nothing, because the names do not match; or what "
        "was loaded are the model's own tensors, which `state_dict()` returns without copying them.",
        fix="Rename the keys (the verdict names the prefix that would match), and check what the load returns. Keep "
        "weights for later as `copy.deepcopy(model.state_dict())`.",
    ),
    order=310,
    checks="checkpoints loaded into models",
    needs=[needs.calls("load", missing="nothing was loaded into a model")],
)
def checkpoints_not_loaded(run: Run) -> Finding | None:
    """Find a load into a model that loaded nothing or almost nothing.

    Some missing keys are normal: a new head on a pretrained body, or an embedding alone. Here none of the given keys
    matches the model, or missing and unexpected keys differ only by a prefix, or most of the model is named otherwise.
    """
    calls = run.calls(rank=first_rank(run))
    loads = [call for call in calls if call.call == "load"]
    last_step = max((place for place, call in enumerate(calls) if call.call == "step"), default=len(calls))
    kept = [call for call in calls[last_step:] if call.call == "load" and call.detail_as(LoadDetail).is_own]
    found = next((found for call in loads if (found := _judge(call)) is not None), None)
    return found or (_own_finding(kept[0]) if kept else None)


def _judge(call: Call) -> Finding | None:
    load = call.detail_as(LoadDetail)
    missing, unexpected, num_missing, num_keys = load.missing, load.unexpected, load.num_missing, load.num_keys
    if not missing:
        return None
    renaming = _renaming(missing, unexpected)
    is_nothing_loaded = load.num_given == load.num_unexpected > 0
    is_prefix = renaming is not None and "" in renaming
    is_most_renamed = (
        renaming is not None and num_missing > num_keys / 2
    )  # fewer may be a new head in place of an old one
    if not (is_nothing_loaded or is_prefix or is_most_renamed):
        return None
    of_keys = f" of its {num_keys}" if num_keys else ""
    why = (
        f"load_state_dict(strict=False) into {load.into}: {num_missing}{of_keys} keys are missing and "
        f"{load.num_unexpected} unexpected; missing {join_names(missing, at_most=2)}; unexpected "
        f"{join_names(unexpected, at_most=2) or 'none'}"
    )
    return error(
        rule="checkpoint-not-loaded",
        confidence=0.97,
        step=call.step,
        title="the checkpoint was not loaded: its keys do not match the model",
        why=why,
        fix=_fix(renaming),
        evidence=(object_of(call.detail),),
    )


def _own_finding(call: Call) -> Finding:
    """Report a load after training that changes nothing; during training it may follow a change of these tensors."""
    load = call.detail_as(LoadDetail)
    return warning(
        rule="checkpoint-not-loaded",
        confidence=0.9,
        step=call.step,
        title="what is loaded are the model's own weights, as they are now",
        why=f"the state dict that {load.into}.load_state_dict got holds the parameters of the model itself: "
        "state_dict() does not copy them, so what was kept has been trained on, and loading it changes nothing",
        fix="keep a copy: best = copy.deepcopy(model.state_dict()), or save it to a file",
        evidence=(object_of(call.detail),),
    )


def _fix(renaming: tuple[str, str] | None) -> str:
    if renaming is None:
        return (
            "load the part of the checkpoint that contains the weights, with strict=True, which reports what is missing"
        )
    saved, wanted = renaming
    if not wanted:
        return f"remove the prefix '{saved}': {{k.removeprefix('{saved}'): v for k, v in saved.items()}}"
    if not saved:
        return f"add the prefix '{wanted}' to every key: {{'{wanted}' + k: v for k, v in saved.items()}}"
    return f"rename '{saved}' to '{wanted}': {{k.replace('{saved}', '{wanted}', 1): v for k, v in saved.items()}}"


def _renaming(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str] | None:
    """Return the prefix in the checkpoint's keys, and the one in the model's, whose exchange makes most keys match."""
    pairs = Counter(_prefixes(name, key) for name in missing for key in unexpected)
    fitting = [(pair, num) for pair, num in pairs.items() if pair is not None]
    best, num = max(fitting, key=lambda entry: entry[1], default=(None, 0))
    return best if num >= max(1, min(len(missing), len(unexpected)) // 2) else None


def _prefixes(name: str, key: str) -> tuple[str, str] | None:
    """Return the prefixes of a checkpoint's key and a model's name before the common tail; None without one."""
    shorter = min(name.count("."), key.count(".")) + 1
    for num_same in range(shorter, 0, -1):
        tail = ".".join(name.split(".")[-num_same:])
        if key == tail or key.endswith(f".{tail}"):
            return key.removesuffix(tail), name.removesuffix(tail)
    return None
