"""Lines up the ops of two steps, per site by an LCS that may skip casts and copies, and removes the loss scale."""

from __future__ import annotations

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from roundoff.compare.runs.event_distance import divide_event
from roundoff.runs import Event
from roundoff.runs.records.event import LOOP, NAMED, StepOp, bare_name

Group: TypeAlias = tuple[str, int, str, str | None]
"""Ops are lined up with those of one phase, microbatch, site and, in the optimizer, parameter."""

SKIPPABLE = frozenset(
    {
        "_to_copy", "alias", "clone", "contiguous", "copy", "detach", "empty_like", "expand", "lift_fresh", "new_empty",
        "new_zeros", "ones", "ones_like", "scalar_tensor", "to", "zero", "zeros", "zeros_like",
    }
)  # fmt: skip
"""Ops that make no new numbers, or only constants."""

MAX_CELLS = 4_000_000
"""With more pairs of ops than this in one site, a faster alignment is used, which may skip more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Which op of the candidate corresponds to which op of the reference."""

    pairs: tuple[tuple[StepOp, StepOp], ...]
    """In the order in which the reference ran them."""
    only_reference: tuple[StepOp, ...]
    only_candidate: tuple[StepOp, ...]
    """Ops without a counterpart, casts and copies included, in the order of their own run."""


def align(
    reference: Sequence[StepOp], candidate: Sequence[StepOp], *, sites: Mapping[str, str] | None = None
) -> Alignment:
    """Align the ops of two steps, in the order they ran; `sites` maps sites of the candidate to the reference's."""
    reference_groups = _group_by_place(_split_foreach(reference), {})
    candidate_groups = _group_by_place(_split_foreach(candidate), sites or {})
    pairs: list[tuple[StepOp, StepOp]] = []
    only_reference: list[StepOp] = []
    only_candidate: list[StepOp] = []
    for group in reference_groups | candidate_groups:
        matched, left, right = _align_group(reference_groups.get(group, []), candidate_groups.get(group, []))
        pairs += matched
        only_reference += left
        only_candidate += right
    pairs.sort(key=lambda pair: pair[0].first.order)
    return Alignment(
        pairs=tuple(pairs),
        only_reference=tuple(sorted(only_reference, key=lambda op: op.first.order)),
        only_candidate=tuple(sorted(only_candidate, key=lambda op: op.first.order)),
    )


def sites_by_order(reference: Sequence[StepOp], candidate: Sequence[StepOp]) -> dict[str, str]:
    """Guess the reference's names of the candidate's sites: sites that run the same ops, in the same order."""
    reference_signatures, candidate_signatures = _signatures(reference), _signatures(candidate)
    left = [site for site in reference_signatures if site not in candidate_signatures]
    right = [site for site in candidate_signatures if site not in reference_signatures]
    matches = common_subsequence(
        [reference_signatures[site] for site in left], [candidate_signatures[site] for site in right]
    )
    return {right[j]: left[i] for i, j in matches}


def op_word(op: StepOp) -> str:
    """Return the name that an op shares with its in-place and foreach versions: `mul` for `aten._foreach_mul_`."""
    return op.first.op if op.first.op in NAMED else re.sub("^_foreach_", "", bare_name(op.first.op))


def is_passing_on(op: StepOp) -> bool:
    """Return whether an op only casts, copies or rounds: one side may have more of them."""
    return op.first.op.startswith("roundoff.") or op_word(op) in SKIPPABLE


def common_subsequence(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence.

    >>> common_subsequence("abcd", "xbd")
    [(1, 1), (3, 2)]
    """
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    inner = _lcs(left[start : len(left) - end], right[start : len(right) - end])
    head = [(i, i) for i in range(start)]
    tail = [(len(left) - end + i, len(right) - end + i) for i in range(end)]
    return [*head, *((start + i, start + j) for i, j in inner), *tail]


def _lcs(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    if not left or not right:
        return []
    if len(left) * len(right) > MAX_CELLS:
        blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
        return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
    lengths = [[0] * (len(right) + 1)]
    for i in range(len(left) - 1, -1, -1):
        below, row = lengths[-1], [0] * (len(right) + 1)
        for j in range(len(right) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if left[i] == right[j] else max(below[j], row[j + 1])
        lengths.append(row)
    lengths.reverse()
    found, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found


def _align_group(
    left: Sequence[StepOp], right: Sequence[StepOp]
) -> tuple[list[tuple[StepOp, StepOp]], list[StepOp], list[StepOp]]:
    """Align one site: first ops that agree in name and shapes, then, between those, ops that agree in name only."""
    exact = common_subsequence([_token(op) for op in left], [_token(op) for op in right])
    matches: list[tuple[int, int]] = []
    for (i0, j0), (i1, j1) in zip([(-1, -1), *exact], [*exact, (len(left), len(right))], strict=True):
        loose = common_subsequence(
            [op_word(op) for op in left[i0 + 1 : i1]], [op_word(op) for op in right[j0 + 1 : j1]]
        )
        matches += [(i0 + 1 + i, j0 + 1 + j) for i, j in loose]
        if i1 < len(left):
            matches.append((i1, j1))
    used_left, used_right = {i for i, _ in matches}, {j for _, j in matches}
    return (
        [(left[i], right[j]) for i, j in matches],
        [op for i, op in enumerate(left) if i not in used_left],
        [op for j, op in enumerate(right) if j not in used_right],
    )


def _token(op: StepOp) -> tuple[Hashable, ...]:
    return (op_word(op), *(output.shape for output in op.outputs))


def _split_foreach(ops: Iterable[StepOp]) -> list[StepOp]:
    """Split foreach ops, so that each of their results is an op of its own, as in a loop over parameters."""
    found: list[StepOp] = []
    for op in ops:
        if op.bare.startswith("_foreach") and len(op.outputs) > 1:
            found += [StepOp(inputs=list(op.inputs_of(output)), outputs=[output]) for output in op.outputs]
        else:
            found.append(op)
    return found


def _group_by_place(ops: Iterable[StepOp], sites: Mapping[str, str]) -> dict[Group, list[StepOp]]:
    groups: dict[Group, list[StepOp]] = defaultdict(list)
    for op in ops:
        event = op.first
        site = sites.get(event.site, event.site)
        parameter = event.parameter
        if parameter is not None and site != event.site and parameter.startswith(event.site):
            parameter = site + parameter[len(event.site) :]
        groups[event.phase, event.microbatch, site, parameter].append(op)
    return groups


def _signatures(ops: Iterable[StepOp]) -> dict[str, tuple[Hashable, ...]]:
    found: dict[str, list[Hashable]] = defaultdict(list)
    for op in ops:
        if op.first.phase == "forward":
            found[op.first.site].append(_token(op))
    return {site: tuple(tokens) for site, tokens in found.items()}


def without_loss_scale(alignment: Alignment, ratio: float) -> Alignment:
    """Return the lined-up ops with the candidate's gradients divided by `ratio`, its loss scale over the reference's.

    A backward pass also reads tensors of the forward, which are not scaled: tensors that are nearer to their
    counterpart without dividing stay unchanged.
    """
    if ratio == 1:
        return alignment
    return replace(alignment, pairs=tuple((a, _divide_scaled(a, b, ratio)) for a, b in alignment.pairs))


def _divide_scaled(reference: StepOp, candidate: StepOp, ratio: float) -> StepOp:
    """Remove the scale from an op of a backward pass, from a single number of the loop, or from a scaler's own op.

    Single numbers are the loss, the scale, and the factor by which gradients are unscaled.
    """
    event = reference.first
    is_of_scaler = event.site == LOOP and event.num_elements == 1
    is_copy_of_loss = is_passing_on(reference) and event.num_elements == 1
    if event.phase != "backward" and not (is_copy_of_loss or is_of_scaler or op_word(reference).startswith("_amp_")):
        return candidate
    for factor in (ratio, 1 / ratio):
        candidate = StepOp(
            inputs=_divide_events(reference.inputs, candidate.inputs, factor),
            outputs=_divide_events(reference.outputs, candidate.outputs, factor),
        )
        if event.phase == "backward":
            break
    return candidate


def _divide_events(reference: Sequence[Event], candidate: Sequence[Event], ratio: float) -> list[Event]:
    known = {event.output: event for event in reference}
    return [divide_event(b, ratio) if _carries_scale(known.get(b.output), b, ratio) else b for b in candidate]


def _carries_scale(a: Event | None, b: Event, ratio: float) -> bool:
    if a is None or not a.l2 or not b.l2:
        return False
    off = math.log(b.l2) - math.log(a.l2)
    return abs(off - math.log(ratio)) < abs(off)
