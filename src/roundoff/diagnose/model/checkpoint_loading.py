"""The rule for checkpoints that were read and not loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose.layers import first_rank
from roundoff.diagnose.loop_calls import rates
from roundoff.runs import Call, Finding, Metrics, Run, Severity
from roundoff.words import join_names

# == The rule for trainings that were resumed without the state of their optimizer.

_AROUND = 5
"""So many losses before and after say whether a training goes on or begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resumption:
    """A load into a model and the step that follows it, with an optimizer that has no state."""

    load: Call
    step: Call
    keys: tuple[str, ...]
    """Where the checkpoint that was read before holds the state of an optimizer of the same rate."""
    before: Call | None
    """The last step before the load that had state; None at the start of the run."""


def lost_optimizer_states(run: Run) -> list[Finding]:
    """Find weights that were loaded to go on with, while the optimizer starts from nothing.

    Weights alone are loaded for fine-tuning, too, and then at another rate. So the checkpoint must have held an
    optimizer's state that nobody took, with the rate of now; or the training was under way in this very run, with such
    a state, and goes on with an optimizer of its kind.
    """
    rank = first_rank(run)
    calls, metrics = run.calls(rank=rank), run.metrics(rank=rank)
    for found in _resumptions(calls):
        if found.keys or (found.before is not None and _goes_on(found, found.before, metrics)):
            return [_finding(found)]
    return []


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
            if load is not None and call.detail.get("is_fresh"):
                keys = [key for known in read if _has_rate_of(known, call) for key in _texts(known, "optimizer_states")]
                found.append(_Resumption(load=load, step=call, keys=tuple(keys), before=before))
            load, read = None, []
            before = before if call.detail.get("is_fresh") else call
    return found


def _has_rate_of(read: Call, step: Call) -> bool:
    """Say whether an optimizer whose state was read had, now or at its start, a learning rate that steps now."""
    known = read.detail.get("optimizer_rates")
    if not isinstance(known, list) or not known:
        return True
    return any(math.isclose(rate, float(other)) for rate in rates(step) for other in known)


def _is_whole(call: Call) -> bool:
    """Say whether a load filled a model: nothing missing, nothing left over."""
    is_model = "missing" in call.detail and bool(call.detail.get("num_keys"))
    return is_model and call.detail.get("num_missing") == 0 and call.detail.get("num_unexpected") == 0


def _goes_on(found: _Resumption, before: Call, metrics: Sequence[Metrics]) -> bool:
    """Say whether the loss goes on from where it was, with the same kind of optimizer at the same rate."""
    if _kind(before) != _kind(found.step) or before.detail.get("lr") != found.step.detail.get("lr"):
        return False
    losses = {metric.step: metric.loss for metric in metrics if metric.loss is not None}
    start = [loss for step, loss in losses.items() if step < _AROUND]
    last = [loss for step, loss in losses.items() if found.step.step - _AROUND <= step < found.step.step]
    new = [loss for step, loss in losses.items() if found.step.step <= step < found.step.step + _AROUND]
    if not start or not last or not new or found.step.step < 2 * _AROUND:
        return False
    return abs(median(new) - median(last)) < abs(median(new) - median(start))


def _kind(call: Call) -> str:
    return str(call.detail.get("optimizer")).partition("#")[0]


def _texts(call: Call, key: str) -> list[str]:
    value = call.detail.get(key)
    return [str(item) for item in value] if isinstance(value, list) else []


def _finding(found: _Resumption) -> Finding:
    kind = _kind(found.step)
    if found.keys:
        cause = (
            f"the checkpoint holds the state of an optimizer ({join_names(found.keys)}), which was not loaded into it"
        )
        fix = f"load it, too, after the optimizer is built: optimizer.load_state_dict(checkpoint['{found.keys[0]}'])"
    else:
        cause = "the optimizer is a new one, and what the one before had learned is gone"
        fix = "save optimizer.state_dict() with the weights, and load it after the optimizer is built"
    return Finding(
        rule="optimizer-state-lost",
        severity=Severity.ERROR,
        confidence=0.9 if found.keys else 0.8,
        step=found.step.step,
        phase="optimizer",
        title=f"{kind} goes on without its state",
        why=f"all {found.load.detail.get('num_keys')} keys of {found.load.detail.get('into')} were loaded before step "
        f"{found.step.step}, but {cause}: its averages start from 0",
        fix=fix,
        evidence=({"load": dict(found.load.detail)}, {"keys": list(found.keys)}),
    )


def checkpoints_not_loaded(run: Run) -> list[Finding]:
    """Find a load into a model after which nothing, or all but nothing, is loaded.

    Some missing keys are normal: a new head on a known body, or an embedding alone. Here not one of the keys that were
    given fits the model, or missing and unexpected ones are the same but for a prefix, or most of the model has got
    another name.
    """
    found = [_judge(call) for call in run.calls(rank=first_rank(run)) if call.call == "load"]
    return [finding for finding in found if finding is not None][:1]


def _judge(call: Call) -> Finding | None:
    missing, unexpected = _names(call, "missing"), _names(call, "unexpected")
    num_missing, num_keys = _number(call, "num_missing"), _number(call, "num_keys")
    if not missing:
        return None
    renaming = _renaming(missing, unexpected)
    is_nothing_loaded = _number(call, "num_given") == _number(call, "num_unexpected") > 0
    is_prefix = renaming is not None and "" in renaming
    is_most_renamed = (
        renaming is not None and num_missing > num_keys / 2
    )  # less may be a new head in an old one's place
    if not (is_nothing_loaded or is_prefix or is_most_renamed):
        return None
    of_keys = f" of its {num_keys}" if num_keys else ""
    why = (
        f"load_state_dict(strict=False) into {call.detail.get('into')}: {num_missing}{of_keys} keys are missing and "
        f"{_number(call, 'num_unexpected')} unexpected; missing {join_names(missing, at_most=2)}; unexpected "
        f"{join_names(unexpected, at_most=2) or 'none'}"
    )
    return Finding(
        rule="checkpoint-not-loaded",
        severity=Severity.ERROR,
        confidence=0.97,
        step=call.step,
        title="the checkpoint was not loaded: its keys do not fit the model",
        why=why,
        fix=_fix(renaming),
        evidence=(dict(call.detail),),
    )


def _fix(renaming: tuple[str, str] | None) -> str:
    if renaming is None:
        return "load the part of the checkpoint that holds the weights, with strict=True, which tells what is missing"
    theirs, ours = renaming
    if not ours:
        return f"take the prefix '{theirs}' off: {{k.removeprefix('{theirs}'): v for k, v in saved.items()}}"
    if not theirs:
        return f"put the prefix '{ours}' before every key: {{'{ours}' + k: v for k, v in saved.items()}}"
    return f"rename '{theirs}' to '{ours}': {{k.replace('{theirs}', '{ours}', 1): v for k, v in saved.items()}}"


def _renaming(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str] | None:
    """Return the beginning of the checkpoint's keys, and the one the model has in its place, that makes most fit."""
    pairs = Counter(_beginnings(ours, theirs) for ours in missing for theirs in unexpected)
    fitting = [(pair, num) for pair, num in pairs.items() if pair is not None]
    best, num = max(fitting, key=lambda entry: entry[1], default=(None, 0))
    return best if num >= max(1, min(len(missing), len(unexpected)) // 2) else None


def _beginnings(ours: str, theirs: str) -> tuple[str, str] | None:
    """Return what two keys begin with before the part in which they agree; None if not even their last words do."""
    shorter = min(ours.count("."), theirs.count(".")) + 1
    for num_same in range(shorter, 0, -1):
        tail = ".".join(ours.split(".")[-num_same:])
        if theirs == tail or theirs.endswith(f".{tail}"):
            return theirs.removesuffix(tail), ours.removesuffix(tail)
    return None


def _names(call: Call, key: str) -> list[str]:
    value = call.detail.get(key)
    return [str(name) for name in value] if isinstance(value, list) else []


def _number(call: Call, key: str) -> int:
    value = call.detail.get(key)
    return value if isinstance(value, int) else 0
