"""Compares two runs by a fixed procedure: data, start values, then every recorded step, op by op."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roundoff.compare.curves.curve import LossCurve
from roundoff.compare.curves.curve_comparison import CurveComparison, compare_curves
from roundoff.compare.runs.alignment import Alignment, align, is_passing_on, sites_by_order, without_loss_scale
from roundoff.compare.runs.divergence import ComparedTensor, Divergence, Side, UnpairedOp
from roundoff.compare.runs.event_distance import WholeTensors
from roundoff.compare.runs.expected_distance import spread_of, unit_of
from roundoff.compare.runs.step_comparison import compare_step
from roundoff.compare.settings.setting_comparison import SettingDifference, differing_settings
from roundoff.errors import CompareError, RoundoffError
from roundoff.formats import format_named
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.recipe.fixed_point_settings import KINDS
from roundoff.precision.recipe.toml import from_toml
from roundoff.runs import Event, Run, sketches_line_up
from roundoff.runs.records.step_ops import StepOp, ops_of


def unit_of_run(run: Run, *, rank: int = 0) -> float:
    """Return the largest relative error of one rounding that the run's recipe asks for; 0 without a recipe.

    Recipes that are emulated keep narrow numbers in wide tensors. One that this version does not know counts as none.
    """
    structures = run.structures(rank=rank)
    written = [optimizer.recipe for structure in structures for optimizer in structure.optimizers if optimizer.recipe]
    try:
        if written:
            return unit_of_recipe(from_toml(written[0], where=f"{run.path}", named=find_recipe))
        return unit_of_recipe(find_recipe(run.info.recipe)) if run.info.recipe else 0.0
    except RoundoffError:
        return 0.0


def unit_of_recipe(recipe: Recipe) -> float:
    """Return the largest relative error of one rounding in a step under the recipe.

    >>> unit_of_recipe(find_recipe("O2")), unit_of_recipe(find_recipe("fp32"))
    (0.00048828125, 0.0)
    """
    formats: list[str] = []
    if recipe.compute in ("cast", "lists", "autocast"):
        formats = [recipe.compute_format, recipe.weights]
    elif recipe.compute == "operands":
        formats = [recipe.operands.forward, recipe.operands.backward]
    units = [format_named(name).eps / 2 for name in formats if name != "fp32"]
    if recipe.compute == "fixed":
        units.append(
            2.0 ** (2 - min(getattr(recipe.fixed, kind).bits for kind in KINDS))
        )  # of a tensor's largest number
    if recipe.least_activation_bits:
        units.append(2.0 ** (1 - recipe.least_activation_bits))  # of the range of a group
    return max(units, default=0.0)


FAR = 1.3
"""Gradients of one batch, divided over other ranks, are not so many times larger or smaller; sums are, by the ranks."""


def differing_aggregation(reference: Run, candidate: Run) -> Divergence | None:
    """Return that gradients are larger by a factor, if they are in most parameters of the first watched step.

    Each rank computes with a part of the batch, so that no result of a forward or backward pass can be compared; what
    the optimizer gets must be the same again, whatever the number of ranks.
    """
    if reference.info.ranks == candidate.info.ranks:
        return None
    reference_norms, candidate_norms = _gradients(reference), _gradients(candidate)
    ratios = [
        candidate_norms[name] / norm for name, norm in reference_norms.items() if norm and candidate_norms.get(name)
    ]
    if not ratios:
        return None
    ratio = statistics.median(ratios)
    if not ratio or abs(math.log(ratio)) < math.log(FAR):
        return None
    relative = abs(ratio - 1) / max(ratio, 1.0)
    return Divergence(
        cause="collective",
        step=0,
        rank=0,
        phase="backward",
        site="<loop>",
        op="gradient",
        parameter=None,
        source=None,
        output="output0",
        format="float32",
        relative=relative,
        introduced_ulps=relative / (2 * unit_of("float32")),
        inherited_ulps=0.0,
        factor=ratio,
    )


def _gradients(run: Run) -> dict[str, float]:
    """Return the norms of gradients as the optimizer first got them, but for those that are next to nothing."""
    table = run.parameters(step=0, rank=0)
    norms = dict(zip(table["parameter"].to_pylist(), table["grad_l2"].to_pylist(), strict=True))
    known = {name: norm for name, norm in norms.items() if norm and math.isfinite(norm)}
    largest = max(known.values(), default=0.0)
    return {name: norm for name, norm in known.items() if norm > 1e-3 * largest}


MIN_COMMON_SHARE = 0.4
"""Runs of which a smaller share of the ops lines up are of different models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """How two runs differ: where first, by how much, and what they were made of."""

    divergence: Divergence | None
    """The first difference that formats do not explain, in a step that both runs recorded."""
    settings: tuple[SettingDifference, ...]
    """The settings in which the runs differ, the most suspicious first."""
    losses: CurveComparison | None
    """The losses of all steps; None if a run has none."""
    rows: tuple[ComparedTensor, ...]
    """Every tensor of the recorded steps that was lined up, up to the step of the divergence."""
    unpaired: tuple[UnpairedOp, ...]
    """Ops that only one of the runs has."""
    steps: tuple[int, ...]
    """The steps that were compared op by op."""
    ranks: tuple[int, ...]

    @property
    def is_identical(self) -> bool:
        """Whether everything that was compared is the same bit for bit."""
        return bool(self.rows) and not self.unpaired and all(row.is_equal for row in self.rows)

    @property
    def largest(self) -> ComparedTensor | None:
        """The largest difference among results of forward passes, where it says something about precision."""
        differing = [row for row in self.rows if row.phase == "forward" and not row.is_equal and row.excess]
        return max(differing, key=lambda row: row.relative, default=None)


def compare_runs(
    reference: Run,
    candidate: Run,
    *,
    step: int | None = None,
    rank: int | None = None,
    sites: Mapping[str, str] | None = None,
) -> RunComparison:
    """Find the first op of the candidate that introduces a difference, and compare what the runs were made of.

    Args:
        reference: what is right.
        candidate: what is looked at.
        step: only this step; else every step that both recorded, up to the first that differs.
        rank: only this rank; else all that both have.
        sites: what sites of the reference are called in the candidate, where that cannot be guessed.
    """
    steps, ranks = _common_steps(reference, candidate, step), _common_ranks(reference, candidate, rank)
    losses = _losses(reference, candidate)
    if not steps and losses is None:
        raise CompareError.explain(
            "There is nothing to compare.",
            why=f"'{reference.path}' and '{candidate.path}' have no recorded step and no loss in common.",
            fix="record both: roundoff run SCRIPT",
        )
    unit = max(unit_of_run(reference), unit_of_run(candidate))
    rows: list[ComparedTensor] = []
    unpaired: dict[UnpairedOp, None] = {}
    divergence: Divergence | None = None
    compared: list[int] = []
    for at in steps:
        compared.append(at)
        for of_rank in ranks:
            alignment = _alignment(reference, candidate, step=at, rank=of_rank, sites=sites or {})
            if not compared[:-1]:
                _check_likeness(alignment, reference, candidate)
            ratio = _loss_scale(candidate, at) / _loss_scale(reference, at)
            found = compare_step(
                without_loss_scale(alignment, ratio),
                coarsest_unit=unit,
                is_first=at == steps[0],
                spread=spread_of(reference, step=at, rank=of_rank),
                whole=WholeTensors.of_step(reference, candidate, step=at, rank=of_rank) if ratio == 1 else None,
                updated=_parameter_distances(rows, step=at - 1, rank=of_rank) if at - 1 in compared else None,
                has_same_batch=reference.info.ranks == candidate.info.ranks,
            )
            rows += found.rows
            unpaired |= dict.fromkeys(_unpaired_ops(alignment, at))
            divergence = divergence or found.divergence
        if divergence is not None:
            break
    return RunComparison(
        divergence=divergence or differing_aggregation(reference, candidate),
        settings=tuple(differing_settings(reference, candidate)),
        losses=losses,
        rows=tuple(rows),
        unpaired=tuple(unpaired),
        steps=tuple(compared),
        ranks=tuple(ranks),
    )


def _check_likeness(alignment: Alignment, reference: Run, candidate: Run) -> None:
    """Refuse runs of different models: hardly any of their ops line up."""
    num_paired = sum(bool(reference_op.inputs or reference_op.outputs) for reference_op, _ in alignment.pairs)
    num_all = num_paired + min(len(alignment.only_reference), len(alignment.only_candidate))
    if num_all and num_paired < MIN_COMMON_SHARE * num_all:
        raise CompareError.explain(
            f"'{reference.path}' and '{candidate.path}' are runs of different models.",
            why=f"{num_paired} of {num_all} ops of their first common step line up.",
            fix="compare runs of one model; if layers have other names, tell them with --map.",
        )


def _parameter_distances(rows: Sequence[ComparedTensor], *, step: int, rank: int) -> dict[str, float]:
    """Return how far apart a step left each parameter: as its optimizer's results are, or as it was at the start."""
    found: dict[str, float] = {}
    for row in rows:
        of_interest = row.phase == "optimizer" or row.op.startswith("parameter#")
        if of_interest and row.parameter and (row.step, row.rank) == (step, rank) and not math.isnan(row.relative):
            found[row.parameter] = max(found.get(row.parameter, 0.0), row.relative)
    return found


def _common_steps(reference: Run, candidate: Run, step: int | None) -> list[int]:
    common = sorted(set(reference.steps) & set(candidate.steps))
    if step is None:
        return common
    if step not in common:
        raise CompareError.explain(
            f"Step {step} cannot be compared.",
            why=f"'{reference.path}' recorded {_join_numbers(reference.steps)}, the other "
            f"{_join_numbers(candidate.steps)}.",
            fix=f"record it in both: roundoff record --steps {step} train.py",
        )
    return [step]


def _common_ranks(reference: Run, candidate: Run, rank: int | None) -> list[int]:
    common = sorted(set(reference.ranks) & set(candidate.ranks))
    if rank is None:
        return common
    if rank not in common:
        raise CompareError.explain(
            f"Rank {rank} cannot be compared.",
            why=f"'{reference.path}' has the ranks {_join_numbers(reference.ranks)}, the other "
            f"{_join_numbers(candidate.ranks)}.",
        )
    return [rank]


def _alignment(reference: Run, candidate: Run, *, step: int, rank: int, sites: Mapping[str, str]) -> Alignment:
    reference_ops = ops_of(reference.iter_events(step=step, rank=rank))
    candidate_ops = ops_of(_comparable(candidate.iter_events(step=step, rank=rank), reference, candidate))
    return align(reference_ops, candidate_ops, sites=_sites(reference_ops, candidate_ops, sites))


def _loss_scale(run: Run, step: int) -> float:
    return next((metrics.loss_scale for metrics in run.metrics() if metrics.step == step and metrics.loss_scale), 1.0)


def _comparable(events: Iterable[Event], reference: Run, candidate: Run) -> Iterable[Event]:
    """Return the candidate's events, without sketches if they do not line up with the reference's."""
    if sketches_line_up(reference.info, candidate.info):
        return events
    return (replace(event, sketch_bytes=None) for event in events)


def _sites(reference: Sequence[StepOp], candidate: Sequence[StepOp], given: Mapping[str, str]) -> dict[str, str]:
    """Return what sites of the candidate are called in the reference, those told before those guessed.

    A name that is told goes for what is below it, too.
    """
    told: dict[str, str] = {}
    sites = {op.first.site for op in candidate}
    for name, other in given.items():
        ours_begin, theirs_begin = name.removesuffix(".*"), other.removesuffix(".*")
        below = [site for site in sites if site == theirs_begin or site.startswith(f"{theirs_begin}.")]
        if not below:
            raise CompareError.explain(
                f"The map names '{other}', which is no site of the candidate.",
                fix="write lines 'site in REF = site in CAND', as `roundoff runs show` prints them.",
            )
        told |= {site: ours_begin + site[len(theirs_begin) :] for site in below}
    return sites_by_order(reference, candidate) | told


def _unpaired_ops(alignment: Alignment, step: int) -> list[UnpairedOp]:
    sides: tuple[tuple[Side, tuple[StepOp, ...]], ...] = (
        ("reference", alignment.only_reference),
        ("candidate", alignment.only_candidate),
    )
    return [
        UnpairedOp(
            side=side,
            step=step,
            phase=op.first.phase,
            site=op.first.site,
            op=op.first.op_name,
            source=op.first.source,
        )
        for side, ops in sides
        for op in ops
        if not is_passing_on(op)
    ]


def _losses(reference: Run, candidate: Run) -> CurveComparison | None:
    reference_curve, candidate_curve = _loss_curve(reference), _loss_curve(candidate)
    return (
        compare_curves(reference_curve, candidate_curve)
        if set(reference_curve.steps) & set(candidate_curve.steps)
        else None
    )


def _loss_curve(run: Run) -> LossCurve:
    told = [(metrics.step, metrics.loss) for metrics in run.metrics() if metrics.loss is not None]
    return LossCurve.of([step for step, _ in told], [loss for _, loss in told], name=str(run.path))


def _join_numbers(numbers: Sequence[int]) -> str:
    return "none" if not numbers else ", ".join(str(number) for number in numbers[:10])
