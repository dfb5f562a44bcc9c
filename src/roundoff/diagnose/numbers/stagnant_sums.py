"""Sums that are kept from step to step in a format in which they no longer grow."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, on_first_rank, rule
from roundoff.diagnose.wording import FORMATS, format_short
from roundoff.runs import AveragesProbe, Finding, Run, Severity, object_of

_MOST = 0.5
"""Of the numbers that should have moved: more than this share did not."""


@rule(
    Code(
        name="sum-stands-still",
        means="Something is added to a running sum or count and has no effect, because it is smaller than half the "
        "distance to the next number of the sum's format: in bf16, 256 + 1 is 256; in fp16, 2048 + 1 is 2048.",
        fix="Keep counts in int64, and sums and averages in fp32 or wider.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=927,
    checks="running sums and counts that no longer change",
    needs=[needs.some(lambda run: any(run.criteria(rank=rank) for rank in run.ranks), "no step was looked at")],
)
@on_first_rank
def stagnant_sums(run: Run, rank: int) -> list[Finding | None]:
    """Find running sums that no longer grow, and averages of the weights that most steps leave as they are."""
    return [_stagnant_sum(run, rank), *(_rounded_average(run, rank, probe) for probe in run.probes(AveragesProbe))]


def _rounded_average(run: Run, rank: int, probe: AveragesProbe) -> Finding | None:
    """Find a copy of a weight in a narrow format that follows it only where the numbers are small."""
    still = [
        (copy.still_share, copy) for copy in probe.copies if copy.still_share is not None and copy.still_share > _MOST
    ]
    if not still or not probe.moved:
        return None
    share, copy = still[0]
    name = FORMATS[str(copy.dtype)]
    return Finding(
        rule="sum-stands-still",
        severity=Severity.ERROR,
        confidence=0.9,
        step=probe.step,
        rank=rank,
        phase="optimizer",
        parameter=probe.parameter,
        title=f"the average of the weights (EMA) in {name} stands still: its small steps are rounded away",
        why=f"a copy of {probe.parameter} in {name} was written to {copy.num_writes} times in the first steps; "
        f"{share:.0%} of the numbers that differ from the weight's did not change at all: (1 - decay) times the "
        f"difference is smaller than half the distance to the next number of {name}",
        fix="keep the average in fp32, also of a model in 16 bits: [p.detach().float().clone() for p in "
        "model.parameters()], and cast it when it is used",
        evidence=(object_of(probe),),
    )


def _stagnant_sum(run: Run, rank: int) -> Finding | None:
    """Find an addition in place to a tensor outside of any graph that leaves most of it as it was.

    The first steps and the last one that could be played again are looked at; in fp32 only whole numbers count.
    """
    found = next((lost for lost in run.lost_numbers(rank=rank) if lost.kind == "stagnant"), None)
    if found is None or len(found.given) != 2:
        return None
    before, added = found.given
    name = FORMATS.get(found.dtype, found.dtype)
    is_in_model = not found.site.startswith("<loop")
    return Finding(
        rule="sum-stands-still",
        severity=Severity.ERROR if is_in_model else Severity.WARNING,
        confidence=0.9,
        step=found.step,
        rank=rank,
        phase="forward",
        site=found.site,
        source=found.source,
        title=f"a running sum in {name} no longer grows",
        why=f"in step {found.step}, {format_short(added)} was added to {format_short(before)} in {name}, and the sum "
        f"stayed {format_short(found.result or 0.0)}: {found.num_lost} of {found.num_elements} sums did not change, "
        "and whatever is computed from them is wrong from then on",
        fix=f"keep the sum in fp32 instead of {name} (dtype=torch.float32), and counts in int64",
        evidence=({"before": before, "added": added, "result": found.result, "num_lost": found.num_lost},),
    )
