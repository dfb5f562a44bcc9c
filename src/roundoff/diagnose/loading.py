"""The rule for checkpoints that were read and not loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roundoff.diagnose.layers import first_rank
from roundoff.diagnose.numbers import listed
from roundoff.runs import Call, Finding, Run, Severity


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
