"""Where in the forward pass a candidate's ranks first have something else than parts of the reference's results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roundoff.compare.layouts.measured_tensor import MeasuredTensor, fit_arrays, tolerance_of
from roundoff.compare.layouts.parameter_parts import ParameterParts
from roundoff.compare.layouts.part_verdict import Agreement, PartHolder, PartVerdict, judge_parts
from roundoff.compare.layouts.piece import WHOLE, Piece, matching_pieces, possible_pieces
from roundoff.compare.layouts.step_tensors import tensor_file
from roundoff.compare.runs.expected_distance import RANDOM
from roundoff.runs import Event, Run
from roundoff.runs.records.event import LOOP, NAMED, bare_name

_BIAS_TOLERANCE = 1e-2
MAX_RANKS = 32
"""Of more ranks, the first are looked at."""


@dataclass(frozen=True, slots=True)
class SiteResult:
    """The last result of a site in the forward pass, and what the candidate's ranks have of it."""

    site: str
    verdict: PartVerdict
    reference: MeasuredTensor
    holders: tuple[PartHolder, ...]


@dataclass(frozen=True, slots=True)
class SiteDraw:
    """Random numbers that a site draws: the reference's, and the candidate's by rank."""

    site: str
    op: str
    reference: MeasuredTensor | None
    by_rank: Mapping[int, MeasuredTensor]


class ForwardPass:
    """What the ranks of a run computed in the forward pass of a step."""

    def __init__(self, run: Run, step: int, ranks: Sequence[int], parts: ParameterParts | None = None) -> None:
        self.results: dict[str, dict[tuple[int, int], MeasuredTensor]] = defaultdict(dict)
        """The last result of each site, by rank and microbatch."""
        self.order: list[str] = []
        """Sites in the order in which they return."""
        self.draws: dict[tuple[str, str], dict[int, MeasuredTensor]] = defaultdict(dict)
        self.tolerance = 0.0
        """That of the coarsest format among the results: a gradient in fp32 may have been computed in bf16."""
        for rank in ranks:
            self._read(run, step, rank, {} if parts is None else parts.sites(rank))

    def _read(self, run: Run, step: int, rank: int, sites: Mapping[str, str]) -> None:
        file = tensor_file(run, step, rank)
        last: dict[tuple[str, int], Event] = {}
        for event in run.iter_events(step=step, rank=rank, phase="forward"):
            if event.op in NAMED or event.site == LOOP or event.output != "output0":
                continue
            site = _reference_site(event.site, sites)
            if bare_name(event.op) in RANDOM and not event.microbatch:
                tensor = MeasuredTensor(event=event, file=file)
                self.draws[site, event.op_name][rank] = tensor
            if event.op != "aten.detach":
                last[site, event.microbatch] = event
                self.tolerance = max(self.tolerance, tolerance_of(event.dtype))
        for (site, microbatch), event in sorted(last.items(), key=lambda item: item[1].order):
            if site not in self.results:
                self.order.append(site)
            self.results[site][rank, microbatch] = MeasuredTensor(event=event, file=file)


def _reference_site(site: str, sites: Mapping[str, str]) -> str:
    """Return the reference's name of a site: its own, or that of the nearest site around it that has parameters."""
    if site in sites:
        return sites[site]
    for begin in sites:
        if begin and site.startswith(f"{begin}."):
            return sites[begin] + site[len(begin) :]
    return site


def compare_sites(reference: ForwardPass, candidate: ForwardPass) -> list[SiteResult]:
    """Put the results of every site together that both have, in the order in which the reference computes them."""
    found = []
    for site in reference.order:
        if site not in candidate.results or len(reference.results[site]) != 1:
            continue
        whole = next(iter(reference.results[site].values()))
        holders = [
            PartHolder((rank,), tensor, _pieces(tensor, whole), (rank, microbatch))
            for (rank, microbatch), tensor in sorted(candidate.results[site].items())
        ]
        if not all(holder.pieces for holder in holders):
            verdict = PartVerdict(agreement=Agreement.UNKNOWN, why_not="shapes do not fit")
        else:
            verdict = judge_parts(holders, whole)
        found.append(SiteResult(site, verdict, whole, tuple(holders)))
    return found


def _pieces(tensor: MeasuredTensor, whole: MeasuredTensor) -> tuple[Piece, ...]:
    if tensor.shape == whole.shape:
        return (WHOLE,)
    return tuple(matching_pieces(tensor, whole) or possible_pieces(tensor.shape, whole.shape)[:1])


def first_wrong(results: Sequence[SiteResult]) -> SiteResult | None:
    """Return the first site that is wrong and after which none is right; None if the last one is right.

    Results inside a layer may be sums that are not reduced yet; what comes after them shows that.
    """
    known = [result for result in results if result.verdict.agreement is not Agreement.UNKNOWN]
    right = [i for i, result in enumerate(known) if result.verdict.agreement is Agreement.EQUAL]
    after = known[right[-1] + 1 :] if right else known
    return after[0] if after else None


def misplaced_bias(result: SiteResult, wholes: Mapping[str, MeasuredTensor]) -> tuple[str, float, bool] | None:
    """Return a bias of the site whose multiple is all that a result differs by: its name and how often it was added.

    The last value says whether the ranks' results were summed; if not, each rank added it to its own summand.
    """
    whole = result.reference.values
    values = [holder.tensor.values for holder in result.holders if holder.tensor.shape == result.reference.shape]
    arrays = [value.astype(np.float64) for value in values if value is not None]
    if whole is None or len(arrays) < 2:
        return None
    for name, parameter in wholes.items():
        if name.rpartition(".")[0] != result.site or parameter.values is None or parameter.shape != whole.shape[-1:]:
            continue
        bias = np.broadcast_to(parameter.values, whole.shape)
        one, total = fit_arrays(arrays[0] - whole, bias), fit_arrays(np.sum(arrays, axis=0) - whole, bias)
        if one.is_multiple(_BIAS_TOLERANCE) and one.factor > 0.5:
            return name, one.factor + 1, True
        if total.is_multiple(_BIAS_TOLERANCE) and abs(total.factor - len(arrays) + 1) < 0.1:
            return name, total.factor + 1, False
    return None


def draws_of(reference: ForwardPass, candidate: ForwardPass) -> list[SiteDraw]:
    """Return the random numbers that sites of the candidate's model draw."""
    found = []
    for (site, op), by_rank in candidate.draws.items():
        whole = next(iter(reference.draws.get((site, op), {}).values()), None)
        found.append(SiteDraw(site, op, whole, by_rank))
    return found
