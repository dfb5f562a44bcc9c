"""What is wrong with the gradients that the optimizer got: a factor, a missing reduction, or something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roundoff.compare.layouts.forward_walk import SiteResult
from roundoff.compare.layouts.layout_fault import LayoutFault, LayoutFaultKind
from roundoff.compare.layouts.missing_sum import find_missing_sum
from roundoff.compare.layouts.parameter_parts import ParameterParts, whole_like
from roundoff.compare.layouts.part_verdict import Agreement, PartHolder, PartVerdict, judge_parts
from roundoff.compare.layouts.rank_mesh import RankMesh, describe_numbers, describe_ranks
from roundoff.compare.layouts.step_tensors import StepTensors
from roundoff.runs import JsonValue, Run
from roundoff.words import join_names, join_words, plural

_NOISE = 1e-2
"""Differences below this part of what rounding does to the largest gradient are rounding, as of a key's bias."""
_NEAR = 0.02
"""A factor is a size of the layout if it is as near as this."""


class GradientCheck:
    """Judges the gradients of one step, and names what is wrong with them."""

    def __init__(
        self,
        reference: Run,
        candidate: Run,
        *,
        step: int,
        parts: ParameterParts,
        mesh: RankMesh | None,
        tolerance: float,
    ) -> None:
        self._reference, self._candidate = reference, candidate
        self._step, self._parts, self._mesh, self._tolerance = step, parts, mesh, tolerance

    def judge(self, wholes: StepTensors, tensors: StepTensors) -> dict[str, PartVerdict]:
        """Put every gradient together, in the order of the reference's parameters."""
        found: dict[str, PartVerdict] = {}
        norms = [held.tensor.event.l2 for of_name in wholes.gradients.values() for held in of_name]
        for name, parameter in self._parts.wholes.items():
            gradients = wholes.gradients.get(name)
            if not gradients or not self._parts.parts.get(name):
                continue
            whole = whole_like(parameter, gradients)
            holders = self._parts.holders(name, tensors.gradients)
            if whole is None:
                found[name] = PartVerdict(agreement=Agreement.UNKNOWN, why_not="the reference's parts are not whole")
            elif holders or whole.event.l2:
                tolerance = max(whole.tolerance, self._tolerance)
                noise = max(_NOISE * tolerance * max(norms), tolerance * whole.event.l2)
                verdict = judge_parts(holders, whole, noise=noise)
                found[name] = self._as_placed(verdict, holders[0] if holders else None)
        return found

    def _as_placed(self, verdict: PartVerdict, holder: PartHolder | None) -> PartVerdict:
        """Accept summands of a DTensor that says that it consists of summands: torch sums them where they are used."""
        is_sum = verdict.agreement is Agreement.PARTIAL and abs(verdict.factor - 1) < _NEAR
        if holder is None or not is_sum:
            return verdict
        placed = self._candidate.placements(rank=holder.ranks[0])
        is_partial = any(
            placement.startswith("partial")
            for each in placed
            if each.kind == "gradient" and each.name == holder.tensor.event.parameter
            for placement in each.placements
        )
        return replace(verdict, agreement=Agreement.EQUAL) if is_partial else verdict

    def faults(self, verdicts: Mapping[str, PartVerdict], results: Sequence[SiteResult]) -> list[LayoutFault]:
        """Name what is wrong: the first thing in the order of the backward pass, and gradients it does not explain."""
        wrong = [
            (name, verdict)
            for name, verdict in reversed(list(verdicts.items()))
            if verdict.agreement not in (Agreement.EQUAL, Agreement.UNKNOWN)
        ]
        if not wrong:
            return []
        name, verdict = next(((n, v) for n, v in wrong if v.agreement is not Agreement.DIFFERENT), wrong[0])
        if verdict is not wrong[0][1] and (reduction := self._missing_sum()) is not None:
            return [reduction]
        alike = [other for other, found in wrong if _is_alike(found, verdict)][::-1]
        lines = self._lines(verdicts, [other for other, _ in wrong], alike)
        if verdict.agreement is Agreement.PARTIAL:
            return [self._reduction(name, verdict, alike, lines, results)]
        if verdict.agreement is Agreement.SCALED:
            return [self._scale(name, verdict, alike, lines, len(verdicts))]
        if verdict.agreement is Agreement.UNEVEN:
            return [self._uneven(name, verdict, alike, lines)]
        return [self._missing_sum() or self._difference(name, verdict, alike, lines)]

    def _lines(self, verdicts: Mapping[str, PartVerdict], wrong: Sequence[str], alike: Sequence[str]) -> list[str]:
        lines = []
        others = len(wrong) - len(alike)
        if others:
            lines.append(f"{plural(others, 'gradient')} before it in the model {_differ(others)} as a consequence")
        right = [name for name, verdict in verdicts.items() if verdict.agreement is Agreement.EQUAL]
        if right:
            lines.append(f"the gradients of {join_names(right[::-1], at_most=3)} are right")
        return lines

    def _reduction(
        self, name: str, verdict: PartVerdict, alike: list[str], lines: list[str], results: Sequence[SiteResult]
    ) -> LayoutFault:
        group = describe_ranks(verdict.classes, self._mesh)
        is_mean = verdict.is_mean
        done = "averaged" if is_mean else "summed"
        kind, ranks = "mean" if is_mean else "sum", describe_ranks(verdict.classes, None)
        numbers: dict[str, JsonValue] = {
            "group": group,
            "factor": verdict.factor,
            "operation": kind,
            "ranks": [list(ranks) for ranks in verdict.classes],
            "parameters": list(alike),
        }
        of = f"the gradient{'s' if len(alike) > 1 else ''} of {join_names(alike)}"
        sums = f"the {kind} of what {ranks} have is the reference's"
        if not is_mean and abs(verdict.factor - 1) > _NEAR:
            sums = f"the sum of what the ranks have is {verdict.factor:.4g} times the reference's"
        if self._parts.is_tied(name):
            own = [(part.name, part.ranks) for part in self._parts.parts[name]]
            where = join_words([f"{part} on {describe_numbers(ranks)}" for part, ranks in own])
            return LayoutFault(
                kind=LayoutFaultKind.TIED,
                step=self._step,
                phase="backward",
                parameter=name,
                title=f"the gradients of the tied weight {name} are not summed over {group}: it is {where}",
                why=(sums, *lines),
                fix="sum the gradients of both copies before the optimizer steps, and start them from the same values",
                numbers=numbers,
            )
        why = [sums]
        if (dim := self._shared_dimension(name, verdict, results)) is not None:
            why.append(f"each rank saw a part of the samples or of the sequence only (dimension {dim})")
        return LayoutFault(
            kind=LayoutFaultKind.REDUCTION,
            step=self._step,
            phase="backward",
            parameter=name,
            title=f"{of} {_are(alike)} not {done} over {group}",
            why=(*why, *lines),
            fix=f"reduce {'this gradient' if len(alike) == 1 else 'these gradients'} over {group} before the optimizer "
            "steps, or the gradient that flows into the layer in backward",
            numbers=numbers,
        )

    def _shared_dimension(self, name: str, verdict: PartVerdict, results: Sequence[SiteResult]) -> int | None:
        """Return the dimension along which the ranks that were not reduced share what goes through the layer."""
        site = name.rpartition(".")[0]
        result = next((result for result in results if result.site == site), None)
        if result is None or result.verdict.agreement is not Agreement.EQUAL or not result.verdict.divided_dims:
            return None
        pieces = {rank: holder.pieces[0] for holder in result.holders for rank in holder.ranks}
        if len({pieces.get(ranks[0]) for ranks in verdict.classes}) < len(verdict.classes):
            return None
        dim = result.verdict.divided_dims[0]
        return dim if dim < len(result.reference.shape) - 1 else None

    def _scale(self, name: str, verdict: PartVerdict, alike: list[str], lines: list[str], num_all: int) -> LayoutFault:
        factor = verdict.factor
        times = max(abs(factor), 1 / abs(factor))
        equals = self._sizes_equal_to(times)
        how = f"{_number(times)} times too {'large' if abs(factor) > 1 else 'small'}"
        if factor < 0:
            how += ", with the wrong sign"
        size = f" ({_number(times)} = {' = '.join(equals)})" if equals else ""
        which = (
            "all gradients"
            if len(alike) == num_all > 1
            else f"the gradient{'s' * (len(alike) > 1)} of {join_names(alike)}"
        )
        divided = f" by {equals[0]}" if len(equals) == 1 else ""
        if not equals:
            fix = "look for what scales gradients in one of the runs only: clipping, an average, a weight of the loss"
        elif factor > 1:
            fix = f"divide{divided}: a sum took the place of a mean, or backward sums what every rank has already"
        else:
            fix = f"do not divide{divided} a second time: a mean where a sum belongs"
        return LayoutFault(
            kind=LayoutFaultKind.SCALE,
            step=self._step,
            phase="backward",
            parameter=name,
            title=f"{which} {_are(alike)} {how}{size}",
            why=tuple(lines) or ("every rank has the same multiple of the reference's gradients",),
            fix=fix,
            numbers={"factor": factor, "equals": list(equals), "parameters": list(alike)},
        )

    def _sizes_equal_to(self, times: float) -> list[str]:
        """Return what of the layout has this size: dimensions of the mesh, ranks, micro-batches."""
        ranks = len(self._candidate.ranks)
        sizes = {} if self._mesh is None else dict(self._mesh.products())
        if self._mesh is None or len(sizes) > 1:
            sizes["ranks"] = ranks
        if self._mesh is None:
            for held in self._parts.parts.values():
                if len({part.tensor.event.hash for part in held}) == len(held) > 1 and not held[0].pieces[0].is_whole:
                    sizes["ranks that share a layer"] = len(held)
                    sizes["copies of the model"] = ranks // len(held)
        sizes["micro-batches"] = _num_backwards(self._candidate, self._step) // max(
            1, _num_backwards(self._reference, self._step)
        )
        sizes["ranks of the reference"] = len(self._reference.ranks)
        return [name for name, size in sizes.items() if size > 1 and abs(times / size - 1) < _NEAR]

    def _uneven(self, name: str, verdict: PartVerdict, alike: list[str], lines: list[str]) -> LayoutFault:
        group = describe_ranks(verdict.classes, self._mesh)
        clips = any(call.call == "clip" and call.step == self._step for call in self._candidate.calls())
        why = [f"each rank has another multiple of the reference's gradient of {name}"]
        if clips:
            why.append("the loop clips gradients: each rank computes the norm of what it holds itself")
        return LayoutFault(
            kind=LayoutFaultKind.SCALE,
            step=self._step,
            phase="backward",
            parameter=name,
            title=f"the gradients of {join_names(alike)} are scaled differently over {group}"
            + (": clipped by the norm of each rank's own parts" if clips else ""),
            why=(*why, *lines),
            fix=f"compute the norm over {group} and clip by that"
            if clips
            else f"scale gradients the same over {group}",
            numbers={"group": group, "ranks": [list(ranks) for ranks in verdict.classes], "parameters": list(alike)},
        )

    def _missing_sum(self) -> LayoutFault | None:
        return find_missing_sum(
            self._reference, self._candidate, step=self._step, phase="backward", parts=self._parts, mesh=self._mesh
        )

    def _difference(self, name: str, verdict: PartVerdict, alike: list[str], lines: list[str]) -> LayoutFault:
        return LayoutFault(
            kind=LayoutFaultKind.DIFFERENCE,
            step=self._step,
            phase="backward",
            parameter=name,
            title=f"the gradient of {name} differs from the reference's, by {100 * verdict.residual:.2g} % of its norm",
            why=(f"no factor and no missing reduction explains it, nor for {plural(len(alike) - 1, 'other')}"
                 if len(alike) > 1 else "no factor and no missing reduction explains it", *lines),
            fix=f"check what flows into {name.rpartition('.')[0] or name} in backward on each rank",
            confidence=0.8,
            numbers={"relative": verdict.residual, "parameters": list(alike)},
        )  # fmt: skip


def _num_backwards(run: Run, step: int) -> int:
    counts = Counter(call.step for call in run.calls(rank=run.ranks[-1]) if call.call == "backward")
    return counts[step]


def _is_alike(a: PartVerdict, b: PartVerdict) -> bool:
    return a.agreement is b.agreement and abs(a.factor - b.factor) <= _NEAR * max(abs(a.factor), abs(b.factor))


def _number(value: float) -> str:
    return f"{round(value)}" if abs(value - round(value)) < _NEAR * value else f"{value:.3g}"


def _are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _differ(count: int) -> str:
    return "differ" if count > 1 else "differs"
