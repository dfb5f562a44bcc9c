"""Compares two runs of one training whose ranks share its work differently: outcome first, then where it went wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from roundoff.compare.layouts.batch_parts import BatchParts, batch_faults, parts_of_batch
from roundoff.compare.layouts.dropout_masks import dropout_faults
from roundoff.compare.layouts.forward_walk import (
    MAX_RANKS,
    ForwardPass,
    SiteResult,
    compare_sites,
    draws_of,
    first_wrong,
    misplaced_bias,
)
from roundoff.compare.layouts.gradient_faults import GradientCheck
from roundoff.compare.layouts.layout_fault import ComparedParts, LayoutFault, LayoutFaultKind
from roundoff.compare.layouts.measured_tensor import MAX_TOLERANCE, MIN_TOLERANCE, ROUNDINGS, MeasuredTensor
from roundoff.compare.layouts.missing_sum import find_missing_sum
from roundoff.compare.layouts.parameter_parts import ParameterParts, match_parameters, placed_pieces
from roundoff.compare.layouts.part_verdict import Agreement, PartVerdict, judge_parts
from roundoff.compare.layouts.rank_mesh import RankMesh, describe_numbers, describe_ranks
from roundoff.compare.layouts.step_tensors import StepTensors, read_step
from roundoff.compare.runs.run_comparison import unit_of_run
from roundoff.errors import CompareError
from roundoff.runs import CachedRun, Run
from roundoff.words import join_names, plural

_UPDATE_TOLERANCE = 0.5
"""Of what optimizers did: an adaptive one turns rounding noise in small gradients into large differences."""
_MIN_GRADIENT = 1e-3
"""Parameters with smaller gradients, relative to the largest, may be moved by rounding noise alone."""
_MIN_UPDATE = 1e-6
"""Smaller changes, relative to the parameter, are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutComparison:
    """How a run with one layout differs from a run with another."""

    reference: str
    candidate: str
    num_ranks: tuple[int, int]
    mesh: str | None
    steps: tuple[int, ...]
    faults: tuple[LayoutFault, ...]
    """What is wrong, the cause first."""
    rows: tuple[ComparedParts, ...]
    notes: tuple[str, ...]
    """What could not be compared, and why."""
    num_read: int
    """Of how many ranks of the candidate events were read; the others have the same hashes."""

    @property
    def differs(self) -> bool:
        """Whether the layout gives other results."""
        return bool(self.faults)

    @property
    def is_answered(self) -> bool:
        """Whether a fault was found, or gradients were put together and agree; else the layout may still be wrong."""
        return self.differs or any(row.kind == "gradient" and row.agreement == Agreement.EQUAL for row in self.rows)

    @property
    def num_equal(self) -> int:
        """How many tensors were put together and are equal."""
        return sum(row.agreement == Agreement.EQUAL for row in self.rows)


@dataclass(slots=True, kw_only=True)
class _Comparing:
    """The comparison as it goes on."""

    reference: Run
    candidate: Run
    mesh: RankMesh | None
    rows: list[ComparedParts] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, step: int, kind: str, name: str, verdict: PartVerdict, num_ranks: int) -> None:
        self.rows.append(
            ComparedParts(
                step=step,
                kind=kind,
                name=name,
                agreement=str(verdict.agreement),
                factor=verdict.factor,
                residual=verdict.residual,
                num_ranks=num_ranks,
                divided_dims=verdict.divided_dims,
                why_not=verdict.why_not,
            )
        )


def layouts_differ(reference: Run, candidate: Run) -> bool:
    """Say whether ranks of two runs share the work differently, as far as that can be compared.

    Copies of a model that share the batch, with summaries only, are better compared op by op.
    """
    has_other_ranks = reference.info.ranks != candidate.info.ranks
    if has_other_ranks and reference.tensor_steps and candidate.tensor_steps:
        return True
    if (reference.info.ranks, candidate.info.ranks) == (1, 1):
        return False
    common = set(reference.steps) & set(candidate.steps)
    if not common:
        return False
    shapes = [
        {event.parameter: event.shape for event in run.iter_events(step=min(common), rank=0, op="parameter")}
        for run in (reference, candidate)
    ]
    if has_other_ranks and shapes[0].keys() != shapes[1].keys():
        return True
    return any(shapes[1].get(name, shape) != shape for name, shape in shapes[0].items())


def compare_layouts(
    reference: Run,
    candidate: Run,
    *,
    mesh: RankMesh | None = None,
    step: int | None = None,
    names: Mapping[str, str] | None = None,
) -> LayoutComparison:
    """Put together what the ranks of the candidate hold, and say what is wrong with their layout.

    Args:
        reference: the run that is right, on one rank or on several.
        candidate: the run to check.
        mesh: the names of the candidate's groups of ranks; by default what the run itself says.
        step: only this step; else every step that both recorded, up to the first that differs.
        names: from names of parameters in the reference to those in the candidate.
    """
    reference, candidate = CachedRun.of(reference), CachedRun.of(candidate)
    steps = sorted(set(reference.steps) & set(candidate.steps))
    steps = [at for at in steps if step is None or at == step]
    if not steps:
        raise CompareError.explain(
            "There is no step to compare.",
            why=f"'{reference.path}' and '{candidate.path}' recorded no common step.",
            fix="record both: roundoff record --level tensors train.py",
        )
    mesh = mesh or mesh_of(candidate)
    state = _Comparing(reference=reference, candidate=candidate, mesh=mesh)
    faults: list[LayoutFault] = []
    parts: ParameterParts | None = None
    num_read = 0
    compared: list[int] = []
    for at in steps:
        wholes, tensors = read_step(reference, at), read_step(candidate, at)
        num_read = max(num_read, tensors.num_read)
        compared.append(at)
        if parts is None:
            placed = {rank: placed_pieces(candidate.placements(rank=rank)) for rank in candidate.ranks}
            parts = match_parameters(wholes, tensors, names=names, placed=placed)
            faults, is_comparable = _first_step(state, at, wholes, tensors, parts)
            if not is_comparable:
                break
        else:
            faults = _later_step(state, at, wholes, tensors, parts)
        if faults:
            break
    return LayoutComparison(
        reference=str(reference.path),
        candidate=str(candidate.path),
        num_ranks=(len(reference.ranks), len(candidate.ranks)),
        mesh=None if mesh is None else str(mesh),
        steps=tuple(compared),
        faults=tuple(faults),
        rows=tuple(state.rows),
        notes=tuple(dict.fromkeys(state.notes)),
        num_read=num_read,
    )


def mesh_of(run: Run) -> RankMesh | None:
    """Return the mesh that a run was started with, or that its sharded parameters lie on; None if it does not say."""
    given = run.info.settings.get("mesh")
    if isinstance(given, str) and given:
        mesh = RankMesh.parse(given)
        return mesh if mesh.num_ranks == run.info.ranks else None
    last = run.ranks[-1]
    for placed in run.placements(rank=last):
        mesh = RankMesh(placed.mesh)
        if mesh.num_ranks == run.info.ranks and tuple(mesh.coordinates(last).values()) == placed.coordinate:
            return mesh
    return None


def _first_step(
    state: _Comparing, step: int, wholes: StepTensors, tensors: StepTensors, parts: ParameterParts
) -> tuple[list[LayoutFault], bool]:
    """Compare the first step: what came in, what it began with, what came out; and whether to go on."""
    _note_unmatched(state, parts)
    batch = parts_of_batch(wholes, tensors, parts)
    faults = batch_faults(step, batch, state.mesh) or _start_faults(state, step, parts)
    if faults:
        return faults, False
    ranks = tensors.ranks[:MAX_RANKS]
    passes = (
        ForwardPass(state.reference, step, wholes.ranks[:MAX_RANKS]),
        ForwardPass(state.candidate, step, ranks, parts),
    )
    faults, blocked = dropout_faults(step, draws_of(*passes), batch, state.mesh)
    if faults or blocked:
        state.notes += blocked
        return faults, False
    units = (unit_of_run(state.reference), unit_of_run(state.candidate))
    tolerance = min(MAX_TOLERANCE, max(passes[0].tolerance, passes[1].tolerance, ROUNDINGS * max(units)))
    check = GradientCheck(
        state.reference, state.candidate, step=step, parts=parts, mesh=state.mesh, tolerance=tolerance
    )
    verdicts = check.judge(wholes, tensors)
    for name, verdict in verdicts.items():
        state.add(step, "gradient", name, verdict, sum(len(part.ranks) for part in parts.parts[name]))
    wrong = {name: v for name, v in verdicts.items() if v.agreement not in (Agreement.EQUAL, Agreement.UNKNOWN)}
    losses = _losses(state, step, max(tolerance, MIN_TOLERANCE))
    results = compare_sites(*passes) if wrong or losses is not None else []
    for result in results:
        state.add(step, "result", result.site, result.verdict, len({r for h in result.holders for r in h.ranks}))
    if losses is not None:
        faults = [_forward_fault(state, step, losses, results, parts)]
    else:
        faults = check.faults(verdicts, results)
    return _without_guesses(state, faults, batch), losses is None


def _without_guesses(state: _Comparing, faults: list[LayoutFault], batch: BatchParts) -> list[LayoutFault]:
    """Drop differences that other inputs explain, where it is not known whether the runs got the same."""
    kinds = (LayoutFaultKind.DIFFERENCE, LayoutFaultKind.FORWARD, LayoutFaultKind.LOSS)
    dropped = [fault for fault in faults if batch.unknown and fault.kind in kinds]
    state.notes += [
        f"{fault.title}; whether the ranks got the reference's batch is not known, so this may be why"
        for fault in dropped
    ]
    return [fault for fault in faults if fault not in dropped]


def _note_unmatched(state: _Comparing, parts: ParameterParts) -> None:
    if parts.not_whole:
        state.notes.append(
            f"{join_names(sorted(parts.not_whole))}: the parts in the reference could not be put together; record it "
            "with --level tensors, or compare with a run on one rank"
        )
    if parts.only_in_candidate:
        state.notes.append(
            f"{join_names(sorted(parts.only_in_candidate))}: the reference has no parameter with this name or value"
        )
    missing = [name for name in parts.wholes if name not in parts.parts and name not in parts.different]
    if missing:
        state.notes.append(f"{join_names(missing)}: no rank of the candidate has it")


def _start_faults(state: _Comparing, step: int, parts: ParameterParts) -> list[LayoutFault]:
    for name, held in parts.parts.items():
        holders = [held_part.ranks for held_part in held]
        verdict = PartVerdict(agreement=Agreement.EQUAL, divided_dims=held[0].pieces[0].dims if held[0].pieces else ())
        state.add(step, "parameter", name, verdict, sum(map(len, holders)))
    if not parts.different:
        return []
    names = list(parts.different)
    ranks = sorted({rank for held in parts.different.values() for part in held for rank in part.ranks})
    for name in names:
        state.add(step, "parameter", name, PartVerdict(agreement=Agreement.DIFFERENT), len(ranks))
    count = plural(len(names), "parameter")
    return [
        LayoutFault(
            kind=LayoutFaultKind.START_VALUES,
            step=step,
            phase="forward",
            parameter=names[0],
            rank=ranks[0],
            title=f"{count} {'starts' if len(names) == 1 else 'start'} from other values than in the reference: "
            f"{join_names(names)}",
            why=(f"what {describe_numbers(ranks)} hold of them is no part of the reference's values",),
            fix="cut every rank's part out of the same whole weights, or load both from one checkpoint",
            numbers={"parameters": list(names), "ranks": list(ranks)},
        )
    ]


def _losses(state: _Comparing, step: int, tolerance: float) -> tuple[float, dict[int, float]] | None:
    """Return the reference's loss and those of the candidate's ranks if they do not make it up; None if they do."""
    reference = [loss for rank in state.reference.ranks if (loss := _loss(state.reference, step, rank)) is not None]
    losses = {rank: loss for rank in state.candidate.ranks if (loss := _loss(state.candidate, step, rank)) is not None}
    # later stages of a pipeline have one, the others go on with a gradient that they are sent
    if not reference or not losses:
        return None
    whole = math.fsum(reference) / len(reference)
    values = list(losses.values())
    mean = math.fsum(values) / len(values)
    # a loss that is divided by ranks or micro-batches, or not, is no difference: the gradients are what counts
    sizes = {
        1,
        *(len(run.ranks) for run in (state.reference, state.candidate)),
        *(_num_microbatches(run, step) for run in (state.reference, state.candidate)),
    }
    made_up = [value for size in sizes for value in (mean * size, mean / size)]
    if any(abs(value - whole) <= tolerance * max(abs(whole), 1e-6) for value in (*made_up, *values)):
        return None
    return whole, losses


def _loss(run: Run, step: int, rank: int) -> float | None:
    return next((metrics.loss for metrics in run.metrics(rank=rank) if metrics.step == step), None)


def _num_microbatches(run: Run, step: int) -> int:
    return max(1, sum(call.step == step and call.call == "backward" for call in run.calls(rank=run.ranks[-1])))


def _forward_fault(
    state: _Comparing,
    step: int,
    losses: tuple[float, dict[int, float]],
    results: Sequence[SiteResult],
    parts: ParameterParts,
) -> LayoutFault:
    """Say where a forward pass went wrong whose loss is another than the reference's."""
    whole, of_ranks = losses
    shown = ", ".join(f"{loss:.6g} on rank {rank}" for rank, loss in list(of_ranks.items())[:4])
    lines = [f"the loss is {shown}, and {whole:.6g} in the reference"]
    wrong = first_wrong(results)
    if wrong is None:
        return _loss_fault(state, step, lines, results)
    verdict, site = wrong.verdict, wrong.site
    right = next((other.site for other in reversed(results[: results.index(wrong)]) if _is_equal(other)), None)
    if right is not None:
        lines.append(f"the result of {right}, before it, is right")
    common = {"step": step, "phase": "forward", "site": site}
    bias = misplaced_bias(wrong, parts.wholes)
    if verdict.agreement is Agreement.PARTIAL or (bias is not None and not bias[2]):
        classes = verdict.classes or tuple(holder.ranks for holder in wrong.holders)
        group = describe_ranks(classes, state.mesh)
        return LayoutFault(
            kind=LayoutFaultKind.REDUCTION,
            **common,  # type: ignore[arg-type]
            title=f"the result of {site} is not summed over {group}",
            why=("the sum of what the ranks have is the reference's", *lines),
            fix=f"sum the result of {site} over {group} in forward",
            numbers={"group": group, "factor": verdict.factor, "ranks": [list(ranks) for ranks in classes]},
        )
    if bias is not None:
        name, times, _ = bias
        return LayoutFault(
            kind=LayoutFaultKind.FORWARD,
            **common,  # type: ignore[arg-type]
            parameter=name,
            title=f"{name} is added {times:.4g} times to the result of {site}",
            why=("each rank adds it before the results are summed over the ranks", *lines),
            fix="add the bias after the reduction, or on one rank only",
            numbers={"factor": times, "parameters": [name]},
        )
    missing = find_missing_sum(
        state.reference, state.candidate, step=step, phase="forward", parts=parts, mesh=state.mesh
    )
    if missing is not None:
        return replace(missing, why=(*missing.why, *lines))
    what = f"{verdict.factor:.4g} times the reference's" if verdict.agreement is Agreement.SCALED else "another"
    return LayoutFault(
        kind=LayoutFaultKind.FORWARD,
        **common,  # type: ignore[arg-type]
        title=f"the result of {site} is {what}: the first in the forward pass that differs"
        if verdict.agreement is Agreement.SCALED
        else f"the result of {site} is the first in the forward pass that differs",
        why=tuple(lines),
        fix=f"check what {site} computes on each rank, and what it exchanges with others",
        confidence=0.8,
        numbers={"factor": verdict.factor, "relative": verdict.residual},
    )


def _loss_fault(state: _Comparing, step: int, lines: list[str], results: Sequence[SiteResult]) -> LayoutFault:
    last = next((result for result in reversed(results) if _is_equal(result)), None)
    dims = last.verdict.divided_dims if last is not None else ()
    is_divided = last is not None and len(last.reference.shape) - 1 in dims
    if last is not None:
        lines.append(f"the result of {last.site}, the last one before it, is right")
    if is_divided:
        assert last is not None
        group = describe_ranks([holder.ranks for holder in last.holders], state.mesh)
        return LayoutFault(
            kind=LayoutFaultKind.LOSS,
            step=step,
            phase="forward",
            site=last.site,
            title=f"the loss of logits whose vocabulary is divided over {group} is wrong",
            why=tuple(lines),
            fix=f"reduce over {group} what the loss needs of the whole vocabulary: the largest logit, the sum of "
            "exponentials, and the logit of the target",
            numbers={"group": group},
        )
    return LayoutFault(
        kind=LayoutFaultKind.LOSS,
        step=step,
        phase="forward",
        title="the losses of the ranks do not make up that of the reference",
        why=tuple(lines),
        fix="compare how the loss is computed, and over how many samples each rank takes its mean",
        confidence=0.8,
    )


def _is_equal(result: SiteResult) -> bool:
    return result.verdict.agreement is Agreement.EQUAL


def _later_step(
    state: _Comparing, step: int, wholes: StepTensors, tensors: StepTensors, parts: ParameterParts
) -> list[LayoutFault]:
    """Compare what the optimizer has done to the parameters since the first step."""
    wrong: dict[str, PartVerdict] = {}
    norms = {name: held[0].tensor.event.l2 for name, held in wholes.gradients.items()}
    for name, before in parts.wholes.items():
        after = wholes.parameters.get(name, ())
        change = _change(before, after[0].tensor) if len(after) == 1 else None
        if change is None or change.event.l2 <= _MIN_UPDATE * before.event.l2:
            continue
        if not norms.get(name, 0.0) > _MIN_GRADIENT * max(norms.values(), default=0.0):
            continue
        holders = [
            replace(holder, tensor=moved)
            for part in parts.parts[name]
            for holder in parts.holders(name, tensors.parameters)
            if set(holder.ranks) <= set(part.ranks) and (moved := _change(part.tensor, holder.tensor)) is not None
        ]
        if not holders:
            continue
        verdict = judge_parts(holders, change, noise=_UPDATE_TOLERANCE * change.event.l2)
        state.add(step, "update", name, verdict, sum(len(holder.ranks) for holder in holders))
        if verdict.agreement not in (Agreement.EQUAL, Agreement.UNKNOWN):
            wrong[name] = verdict
    if not wrong:
        return []
    name, verdict = next(iter(wrong.items()))
    return [
        LayoutFault(
            kind=LayoutFaultKind.DIFFERENCE,
            step=step,
            phase="optimizer",
            parameter=name,
            title=f"{join_names(list(wrong))} {'was' if len(wrong) == 1 else 'were'} updated differently before step "
            f"{step}" + (f", {verdict.factor:.3g} times as much" if verdict.agreement is Agreement.SCALED else ""),
            why=("no gradient of the first compared step was found to differ",),
            fix="compare the optimizers' settings, and what they do with parts of parameters",
            confidence=0.8,
            numbers={"parameters": list(wrong), "relative": verdict.residual},
        )
    ]


def _change(before: MeasuredTensor, after: MeasuredTensor) -> MeasuredTensor | None:
    """Return what was added to a tensor; None if its values are not known."""
    if before.values is None or after.values is None or before.shape != after.shape:
        return None
    return after.with_values(after.values.astype("float64") - before.values)
