"""Compares two runs by a fixed procedure: data, start values, then every recorded step, op by op."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from roundoff.compare.curves.curve import LossCurve
from roundoff.compare.curves.curve_comparison import CurveComparison, compare_curves
from roundoff.compare.runs.alignment import Alignment, align, is_passing_on, sites_by_order, without_loss_scale
from roundoff.compare.runs.divergence import ComparedTensor, Divergence, Side, UnpairedOp
from roundoff.compare.runs.event_distance import WholeTensors
from roundoff.compare.runs.expected_distance import FP32_UNIT, GROWTH, roundings, spread_of, unit_of
from roundoff.compare.runs.fp64_errors import ComparedError, compare_errors
from roundoff.compare.runs.step_comparison import UNKNOWN_TERMS, StepComparison, StepWalk
from roundoff.compare.settings.setting_comparison import differing_settings
from roundoff.compare.settings.setting_difference import SettingDifference
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.errors import CompareError, RoundoffError
from roundoff.formats import format_named
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.recipe.fixed_point_settings import KINDS
from roundoff.precision.recipe.toml import from_toml
from roundoff.progress import counting
from roundoff.runs import Event, Run, sketches_line_up
from roundoff.runs.records.event import LOOP, StepOp, ops_of

MIN_COMMON_SHARE = 0.4
"""Runs are of different models if a smaller share of their ops lines up."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison(ShownComparison):
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
    fp64_errors: tuple[ComparedError, ...] = ()
    """The error of each op in both runs; empty unless both were recorded with `--reference fp64`."""

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
    forward_only: tuple[Collection[str], Collection[str]] = ((), ()),
) -> RunComparison:
    """Find the first op of the candidate that introduces a difference, and compare what the runs were made of.

    Args:
        reference: the run that is right.
        candidate: the run to check.
        step: only this step; else every step that both recorded, up to the first that differs.
        rank: only this rank; else all that both have.
        sites: from sites of the reference to sites of the candidate, where that cannot be guessed.
        forward_only: parameters of the reference and of the candidate of which only the forward is compared.
    """
    steps = _common("step", reference.steps, candidate.steps, chosen=step)
    ranks = _common("rank", reference.ranks, candidate.ranks, chosen=rank)
    losses = _losses(reference, candidate)
    if not steps and losses is None:
        raise CompareError.explain(
            "There is nothing to compare.",
            why=f"'{reference.path}' and '{candidate.path}' have no recorded step and no loss in common.",
            fix="watch both with `roundoff run`.",
        )
    unit = max(unit_of_run(reference), unit_of_run(candidate))
    rows: list[ComparedTensor] = []
    unpaired: dict[UnpairedOp, None] = {}
    divergence: Divergence | None = None
    compared: list[int] = []
    errors: list[ComparedError] = []
    for at in counting(steps, "step"):
        compared.append(at)
        for of_rank in ranks:
            alignment = _alignment((reference, candidate), forward_only, step=at, rank=of_rank, sites=sites or {})
            if not compared[:-1]:
                _check_likeness(alignment, reference, candidate)
            ratio = _loss_scale(candidate, at) / _loss_scale(reference, at)
            walk = StepWalk(
                alignment=without_loss_scale(alignment, ratio),
                coarsest_unit=unit,
                is_first=at == steps[0],
                spread=spread_of(reference, step=at, rank=of_rank),
                whole=WholeTensors.of_step(reference, candidate, step=at, rank=of_rank) if ratio == 1 else None,
                updated=_parameter_distances(rows, step=at - 1, rank=of_rank) if at - 1 in compared else None,
                has_same_batch=reference.info.ranks == candidate.info.ranks,
            )
            found = walk.compare()
            errors += compare_errors(alignment)
            rows += found.rows
            unpaired |= dict.fromkeys(_unpaired_ops(alignment, at))
            divergence = divergence or _blame_loss(
                found, alignment, _losses_of(reference, candidate, step=at, rank=of_rank)
            )
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
        fp64_errors=tuple(errors),
    )


def _check_likeness(alignment: Alignment, reference: Run, candidate: Run) -> None:
    """Refuse runs of different models: hardly any of their ops line up."""
    num_paired = sum(bool(reference_op.inputs or reference_op.outputs) for reference_op, _ in alignment.pairs)
    num_all = num_paired + min(len(alignment.only_reference), len(alignment.only_candidate))
    if num_all and num_paired < MIN_COMMON_SHARE * num_all:
        raise CompareError.explain(
            f"'{reference.path}' and '{candidate.path}' are runs of different models.",
            why=f"{num_paired} of {num_all} ops of their first common step line up.",
            fix="compare runs of one model; if layers have other names, map them with --map.",
        )


def _losses_of(reference: Run, candidate: Run, *, step: int, rank: int) -> tuple[float, float] | None:
    """Return the losses of a rank; None if the runs have other numbers of ranks, whose losses are of other batches."""
    if reference.info.ranks != candidate.info.ranks:
        return None
    found = [next((m.loss for m in run.metrics(rank=rank) if m.step == step), None) for run in (reference, candidate)]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _blame_loss(found: StepComparison, alignment: Alignment, losses: tuple[float, float] | None) -> Divergence | None:
    """Return the first difference of a step; if its loss differs already, it is not in the backward pass.

    What makes the loss different then is an op that only one run has, whose result was not compared.
    """
    first = found.divergence
    if first is None or first.phase not in ("backward", "optimizer") or losses is None or first.cause == "data":
        return first
    largest = max(abs(loss) for loss in losses)
    relative = abs(losses[0] - losses[1]) / largest if largest else 0.0
    forward = [row for row in found.rows if row.phase == "forward" and not math.isnan(row.relative)]
    units = [unit_of(dtype) for row in forward for dtype in (row.reference_dtype, row.candidate_dtype)]
    noise = max((row.relative for row in forward), default=0.0)
    if not relative > GROWTH * noise + roundings(max(units, default=FP32_UNIT), num_terms=UNKNOWN_TERMS):
        return first
    sides: tuple[tuple[Side, tuple[StepOp, ...]], ...] = (
        ("candidate", alignment.only_candidate),
        ("reference", alignment.only_reference),
    )
    blamed = replace(
        first, cause="forward", phase="forward", site=LOOP, op="loss", parameter=None, source=None, output="output0",
        relative=relative, introduced_ulps=relative / (2 * unit_of("float32")), inherited_ulps=0.0, knows_inputs=False,
        channel=None, num_channels=None, is_only_in=None, shapes=None, format="float32",
    )  # fmt: skip
    for side, ops in sides:
        alone = [op.first for op in ops if op.first.phase == "forward" and not is_passing_on(op) and op.outputs]
        last_site = [event for event in alone if event.site == alone[-1].site]
        if last_site:
            event = last_site[0]
            return replace(blamed, site=event.site, op=event.op_name, source=event.source, is_only_in=side)
    return blamed


def _parameter_distances(rows: Sequence[ComparedTensor], *, step: int, rank: int) -> dict[str, float]:
    """Return how far apart each parameter is after a step, by its optimizer's results or its value at the start."""
    found: dict[str, float] = {}
    for row in rows:
        of_interest = row.phase == "optimizer" or row.op.startswith("parameter#")
        if of_interest and row.parameter and (row.step, row.rank) == (step, rank) and not math.isnan(row.relative):
            found[row.parameter] = max(found.get(row.parameter, 0.0), row.relative)
    return found


def _common(noun: str, reference: Sequence[int], candidate: Sequence[int], *, chosen: int | None) -> list[int]:
    """Return the steps or ranks that both runs recorded; only the chosen one, if one is given."""
    common = sorted(set(reference) & set(candidate))
    if chosen is None or chosen in common:
        return common if chosen is None else [chosen]
    first, second = (", ".join(map(str, numbers[:10])) or "none" for numbers in (reference, candidate))
    raise CompareError.explain(
        f"{noun.capitalize()} {chosen} cannot be compared.",
        why=f"the reference recorded {noun}s {first}, the candidate {second}.",
        fix=f"record it in both: roundoff record --steps {chosen} train.py" if noun == "step" else None,
    )


def _alignment(
    runs: tuple[Run, Run],
    forward_only: tuple[Collection[str], Collection[str]],
    *,
    step: int,
    rank: int,
    sites: Mapping[str, str],
) -> Alignment:
    events, candidate_events = (
        _without_backward(run.iter_events(step=step, rank=rank), names)
        for run, names in zip(runs, forward_only, strict=True)
    )
    if not sketches_line_up(runs[0].info, runs[1].info):
        candidate_events = (replace(event, sketch_bytes=None) for event in candidate_events)
    reference_ops, candidate_ops = ops_of(events), ops_of(candidate_events)
    return align(reference_ops, candidate_ops, sites=_sites(reference_ops, candidate_ops, sites))


def _without_backward(events: Iterable[Event], parameters: Collection[str]) -> Iterator[Event]:
    """Drop the start values of some parameters, and the backward and optimizer ops of their sites."""
    sites = {name.rpartition(".")[0] for name in parameters}
    for event in events:
        is_start = event.op == "parameter" and event.parameter in parameters
        if not is_start and not (event.site in sites and event.phase in ("backward", "optimizer")):
            yield event


def _loss_scale(run: Run, step: int) -> float:
    return next((metrics.loss_scale for metrics in run.metrics() if metrics.step == step and metrics.loss_scale), 1.0)


def _sites(reference: Sequence[StepOp], candidate: Sequence[StepOp], given: Mapping[str, str]) -> dict[str, str]:
    """Return the reference's names of the candidate's sites, given ones before guessed ones.

    A given name also applies to what is below it.
    """
    known: dict[str, str] = {}
    sites = {op.first.site for op in candidate}
    for name, other in given.items():
        reference_begin, candidate_begin = name.removesuffix(".*"), other.removesuffix(".*")
        below = [site for site in sites if site == candidate_begin or site.startswith(f"{candidate_begin}.")]
        if not below:
            raise CompareError.explain(
                f"The map names '{other}', which is not a site of the candidate.",
                fix="write lines 'site in REF = site in CAND', as `roundoff runs show` prints them.",
            )
        known |= {site: reference_begin + site[len(candidate_begin) :] for site in below}
    return sites_by_order(reference, candidate) | known


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
    if not set(reference_curve.steps) & set(candidate_curve.steps):
        return None
    return compare_curves(reference_curve, candidate_curve)


def _loss_curve(run: Run) -> LossCurve:
    losses = [(metrics.step, metrics.loss) for metrics in run.metrics() if metrics.loss is not None]
    return LossCurve.of([step for step, _ in losses], [loss for _, loss in losses], name=str(run.path))


FAR = 1.3
"""Averaged gradients of one batch differ by less than this factor between numbers of ranks; summed ones by more."""


def differing_aggregation(reference: Run, candidate: Run) -> Divergence | None:
    """Report gradients that are larger by a factor, if they are in most parameters of the first watched step.

    Each rank computes with a part of the batch, so that no result of a forward or backward pass can be compared; what
    the optimizer gets must be the same for any number of ranks.
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
    """Return the norms of the gradients that the optimizer got first, without negligible ones."""
    table = run.parameters(step=0, rank=0)
    norms = dict(zip(table["parameter"].to_list(), table["grad_l2"].to_list(), strict=True))
    known = {name: norm for name, norm in norms.items() if norm and math.isfinite(norm)}
    largest = max(known.values(), default=0.0)
    return {name: norm for name, norm in known.items() if norm > 1e-3 * largest}


def unit_of_run(run: Run) -> float:
    """Return the largest relative error of one rounding under the run's recipe; 0 without a recipe.

    Emulated recipes keep narrow numbers in wide tensors. A recipe that this version does not know counts as none.
    """
    written = [
        optimizer.recipe for structure in run.structures() for optimizer in structure.optimizers if optimizer.recipe
    ]
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
