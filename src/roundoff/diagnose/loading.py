"""The rule for checkpoints that were read and not loaded."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.layers import first_rank
from roundoff.diagnose.numbers import listed
from roundoff.runs import Call, Finding, Run, Severity


def checkpoints_not_loaded(run: Run) -> list[Finding]:
    """Find a load into a model after which nothing, or all but nothing, is loaded.

    Some missing keys are normal: a new head on a known body, or an embedding alone. Here not one of the keys that were
    given fits the model, or missing and unexpected ones are the same but for a prefix.
    """
    found = [_judge(call) for call in run.calls(rank=first_rank(run)) if call.call == "load"]
    return [finding for finding in found if finding is not None][:1]


def _judge(call: Call) -> Finding | None:
    missing, unexpected = _names(call, "missing"), _names(call, "unexpected")
    num_missing, num_keys = _number(call, "num_missing"), _number(call, "num_keys")
    if not missing:
        return None
    fitting = _prefix(missing, unexpected)
    is_nothing_loaded = _number(call, "num_given") == _number(call, "num_unexpected") > 0
    if fitting is None and not is_nothing_loaded:
        return None
    of_keys = f" of its {num_keys}" if num_keys else ""
    why = (
        f"load_state_dict(strict=False) into {call.detail.get('into')}: {num_missing}{of_keys} keys are missing and "
        f"{_number(call, 'num_unexpected')} unexpected; missing {listed(missing, most=2)}; unexpected "
        f"{listed(unexpected, most=2) or 'none'}"
    )
    return Finding(
        rule="checkpoint-not-loaded",
        severity=Severity.ERROR,
        confidence=0.97,
        step=call.step,
        title="the checkpoint was not loaded: its keys do not fit the model",
        why=why,
        fix=_fix(fitting),
        evidence=(dict(call.detail),),
    )


def _fix(fitting: tuple[str, str] | None) -> str:
    if fitting is None:
        return "load the part of the checkpoint that holds the weights, with strict=True, which tells what is missing"
    added, removed = fitting
    if removed:
        return f"take the prefix '{removed}' off: {{k.removeprefix('{removed}'): v for k, v in saved.items()}}"
    return f"put the prefix '{added}' before every key: {{'{added}' + k: v for k, v in saved.items()}}"


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str] | None:
    """Return the prefix to add to the keys of the checkpoint, or the one to take off, that makes them fit."""
    for name in missing:
        for other in unexpected:
            longer, shorter = (other, name) if len(other) > len(name) else (name, other)
            if not longer.endswith(shorter) or longer == shorter:
                continue
            prefix = longer[: -len(shorter)]
            added, removed = ("", prefix) if longer is other else (prefix, "")
            fits = {added + key.removeprefix(removed) for key in unexpected if key.startswith(removed)}
            if len(fits & set(missing)) >= max(1, min(len(missing), len(unexpected)) // 2):
                return added, removed
    return None


def _names(call: Call, key: str) -> list[str]:
    value = call.detail.get(key)
    return [str(name) for name in value] if isinstance(value, list) else []


def _number(call: Call, key: str) -> int:
    value = call.detail.get(key)
    return value if isinstance(value, int) else 0
