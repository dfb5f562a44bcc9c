"""The rule for trainings that were resumed without the state of their optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose.layers import first_rank
from roundoff.diagnose.loop_calls import rates
from roundoff.diagnose.numbers import listed
from roundoff.runs import Call, Finding, Metrics, Run, Severity

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
        cause = f"the checkpoint holds the state of an optimizer ({listed(found.keys)}), which was not loaded into it"
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
