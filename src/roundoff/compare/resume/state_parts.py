"""Compares the state of two trainings at a seam, hash by hash: weights, buffers, optimizer, copies, loss scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roundoff.compare.resume.compared_part import (
    ComparedPart,
    Restoration,
    ResumePart,
    absent,
    as_before,
    lost,
    unknown,
)
from roundoff.compare.resume.seam import Seam, weights_of
from roundoff.runs import JsonValue, LoadDetail, Metrics, Run, StateFacts, StateGroup
from roundoff.words import join_words, plural

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hashes:
    """The tensors of one kind that both sides have, and those that differ."""

    num_common: int
    differing: tuple[str, ...]
    num_missing: int
    """How many the reference has that the candidate has not."""

    @classmethod
    def of(cls, reference: StateFacts, candidate: StateFacts, kind: str) -> _Hashes:
        first, second = (
            _hashes_of(group for group in state.groups if group.kind == kind) for state in (reference, candidate)
        )
        common = [name for name in first if name in second]
        return cls(
            num_common=len(common),
            differing=tuple(name for name in common if first[name] != second[name]),
            num_missing=len(first) - len(common),
        )

    @property
    def listed_names(self) -> str:
        """The differing tensors, as a sentence lists them."""
        return join_words([name.partition("/")[2] or name for name in self.differing], at_most=_SHOWN)


def _hashes_of(groups: Iterable[StateGroup]) -> dict[str, str]:
    """Return hashes by name; of a group whose single tensors were not written, that of the group."""
    found: dict[str, str] = {}
    for group in groups:
        for name, number in (group.tensors or {"": group.hash}).items():
            found[f"{group.name}/{name}"] = number
    return found


def state_parts(seam: Seam, run: Run, resumed: Run, *, rank: int = 0) -> list[ComparedPart]:
    """Compare everything that was hashed at the seam."""
    reference, candidate = seam.reference, seam.candidate
    parts = (ResumePart.WEIGHTS, ResumePart.BUFFERS, ResumePart.OPTIMIZER, ResumePart.COPIES)
    if reference is None or candidate is None:
        side = "the run" if reference is None else "the resumed run"
        return [unknown(part, f"{side} has no hashes of its state before this step") for part in parts]
    why = reference.why_no_groups or candidate.why_no_groups
    if why is not None:
        return [unknown(part, why) for part in parts]
    return [
        _weights(reference, candidate, run, resumed, rank),
        _buffers(reference, candidate),
        _optimizer(reference, candidate),
        _copies(reference, candidate, run, rank),
    ]


def _weights(reference: StateFacts, candidate: StateFacts, run: Run, resumed: Run, rank: int) -> ComparedPart:
    part, found = ResumePart.WEIGHTS, _Hashes.of(reference, candidate, "weight")
    if not found.num_common:
        return unknown(part, "the models of the two runs have no weight with the same name")
    if not found.differing:
        return as_before(part, f"all {found.num_common} are the same")
    loads = [call.detail for call in resumed.calls(rank=rank) if isinstance(call.detail, LoadDetail)]
    missing = [name for load in loads for name in load.missing]
    num_lost = len(found.differing)
    numbers: dict[str, JsonValue] = {
        "num_differing": num_lost,
        "num_weights": found.num_common,
        "differing": list(found.differing[:20]),
    }
    if _are_as_saved(reference, candidate, run, rank):
        text = f"the checkpoint holds other weights than the run went on with: {num_lost} of {found.num_common} differ"
        return lost(part, text, fix="save the weights that are trained, not an average that is swapped in", **numbers)
    fix = "load all weights, with strict=True, and let the model have the layers of the checkpoint"
    if num_lost == found.num_common:
        text = f"the weights are others: none of {num_lost} is that of the run"
        if weights_of(reference).keys() != weights_of(candidate).keys():
            text += ", and some have other names"
        return lost(part, text, fix=fix, **numbers)
    text = f"only some weights were loaded: {found.listed_names} {'is' if num_lost == 1 else 'are'} not as in the run"
    if missing:
        text += f"; load_state_dict missed {join_words(missing, at_most=_SHOWN)}"
    return lost(part, text, fix=fix, **numbers)


def _are_as_saved(reference: StateFacts, candidate: StateFacts, run: Run, rank: int) -> bool:
    """Say whether all weights were loaded as they were saved, and the run changed them before its next step."""
    saved = [state for state in run.states(rank=rank) if state.step == reference.step and state.moment == "saved"]
    return any(weights_of(state) == weights_of(candidate) for state in saved)


def _buffers(reference: StateFacts, candidate: StateFacts) -> ComparedPart:
    part, found = ResumePart.BUFFERS, _Hashes.of(reference, candidate, "buffer")
    if not found.num_common:
        return absent(part, "the model has none")
    if not found.differing:
        return as_before(part, f"all {found.num_common} are the same")
    are = "is" if len(found.differing) == 1 else "are"
    text = f"the buffers were not restored: {found.listed_names} {are} not as in the run"
    fix = "save the whole state_dict() of the model, which holds its buffers, and load it with strict=True"
    return lost(part, text, fix=fix, differing=list(found.differing[:20]))


def _optimizer(reference: StateFacts, candidate: StateFacts) -> ComparedPart:
    part = ResumePart.OPTIMIZER
    first, second = (
        {group.name: group for group in state.groups if group.kind == "optimizer"} for state in (reference, candidate)
    )
    if not first and not reference.updates:
        return absent(part, "the optimizer keeps none")
    problems = [
        text for name in reference.rates for text in _optimizer_problems(name, reference, candidate, first, second)
    ]
    if not problems:
        num = sum(group.num_tensors for group in first.values())
        return as_before(part, f"all {plural(num, 'tensor')} of {join_words(list(reference.rates))} are the same")
    return lost(
        part,
        f"the optimizer's state was not restored: {'; '.join(problems[:_SHOWN])}",
        fix="save optimizer.state_dict(), and load it when the optimizer has been made for the last time",
        problems=list(problems),
    )


def _optimizer_problems(
    name: str,
    reference: StateFacts,
    candidate: StateFacts,
    first: dict[str, StateGroup],
    second: dict[str, StateGroup],
) -> list[str]:
    """Say what of one optimizer's state is not what it was."""
    if name not in candidate.rates:
        return [f"the run trains with {name}, the resumed run with {join_words(list(candidate.rates)) or 'none'}"]
    own = {key: group for key, group in first.items() if key.rpartition(".")[0] == name}
    count, other_count = reference.updates.get(name), candidate.updates.get(name)
    after = f" after {plural(count, 'update')}" if isinstance(count, int) else ""
    missing = [key.rpartition(".")[2] for key in own if key not in second]
    if own and len(missing) == len(own):
        return [f"{name} begins without {join_words(missing)}, which the run had{after}"]
    problems = [f"{name} begins without {join_words(missing)}"] if missing else []
    for key, group in own.items():
        other = second.get(key)
        if other is None or other.hash == group.hash:
            continue
        state = f"{name}'s {key.rpartition('.')[2]}"
        if other.num_zero == other.num_tensors and group.l2 > 0:
            problems.append(f"{state} is zero where the run had a norm of {group.l2:.3g}{after}")
        else:
            names = [tensor for tensor, number in group.tensors.items() if other.tensors.get(tensor) != number]
            of = f" of {join_words(names, at_most=_SHOWN)}" if names else ""
            problems.append(f"{state}{of} has a norm of {other.l2:.3g} where the run had {group.l2:.3g}")
    if count != other_count:
        problems.append(f"{name} has counted {plural(_count(other_count), 'update')} where the run had {_count(count)}")
    return problems


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _copies(reference: StateFacts, candidate: StateFacts, run: Run, rank: int) -> ComparedPart:
    part = ResumePart.COPIES
    first, second = (
        {(group.name, tuple(sorted(group.tensors))): group for group in state.groups if group.kind == "copy"}
        for state in (reference, candidate)
    )
    if not first:
        return absent(part, "the run keeps none")
    common = [key for key in first if key in second]
    if not common:
        return unknown(part, "the resumed run has none before its first step")
    names = list(dict.fromkeys(key[0] for key in common))
    changed = [key for key in common if second[key].hash != first[key].hash]
    if not changed:
        return as_before(part, f"{join_words(names)} {'is' if len(names) == 1 else 'are'} the same")
    if all(_is_kept_checkpoint(first[key], run, rank) for key in changed):
        text = f"{join_words(names)} holds weights that the run had saved, not those of a copy that goes on"
        return ComparedPart(part=part, answer=Restoration.UNUSED, text=text)
    loaded = _weights_in(candidate.groups)
    own = [key for key in changed if loaded and loaded <= set(second[key].tensors.values())]
    now = ", which is a copy of the loaded weights now" if own else ""
    kinds = list(dict.fromkeys(key[0] for key in changed))
    text = f"the average or copy of the model was not restored: {join_words(kinds)}{now}"
    fix = "save the copy's state_dict() too, and load it after the copy is made"
    return lost(part, text, fix=fix, copies=list(kinds))


def _weights_in(groups: Iterable[StateGroup]) -> set[str]:
    return {number for group in groups if group.kind == "weight" for number in group.tensors.values()}


def _is_kept_checkpoint(copy: StateGroup, run: Run, rank: int) -> bool:
    """Say whether a copy holds the weights of some checkpoint, as the best model so far does."""
    held = set(copy.tensors.values())
    return any(held and held <= _weights_in(state.groups) for state in run.states(rank=rank))


def loss_scale_part(seam: Seam, run: Sequence[Metrics], resumed: Sequence[Metrics]) -> ComparedPart:
    """Compare the loss scale: that of the GradScaler, or else the one that the losses were multiplied by."""
    part = ResumePart.LOSS_SCALE
    fix = "save scaler.state_dict() and load it before the first step"
    reference, candidate = seam.reference, seam.candidate
    if reference is not None and candidate is not None and reference.loss_scale and candidate.loss_scale:
        first, second = reference.loss_scale, candidate.loss_scale
        ages = reference.loss_scale_age, candidate.loss_scale_age
    else:
        by_step = {line.step: line.loss_scale for line in run}
        first, second = by_step.get(seam.step) or 0.0, (resumed[0].loss_scale if resumed else None) or 0.0
        ages = None, None
    if not first and not second:
        return absent(part, "losses are not scaled")
    if not first or not second:
        return unknown(part, f"only {'the run' if first else 'the resumed run'} tells its loss scale")
    if first != second:
        again = " again" if second == 65536.0 else ""
        return lost(part, f"the loss scale is {second:g}{again}; the run had {first:g}", fix=fix, was=first, now=second)
    if ages[0] != ages[1]:
        text = f"the loss scale is {first:g} in both, but it counts {ages[1]} good steps where the run had {ages[0]}"
        return lost(part, text, fix=fix, was=ages[0], now=ages[1])
    return as_before(part, f"{first:g} in both")
