"""What is wrong with a parallel layout, as findings."""

from __future__ import annotations

from roundoff.compare.layouts.layout_comparison import LayoutComparison
from roundoff.compare.layouts.layout_fault import LayoutFault, LayoutFaultKind
from roundoff.diagnose.rule import Code, error
from roundoff.runs import Finding

_KIND = LayoutFaultKind
_CODE_OF = {
    _KIND.INPUTS: "layout-inputs",
    _KIND.START_VALUES: "layout-inputs",
    _KIND.DROPOUT: "layout-dropout",
    _KIND.SCALE: "layout-gradient-scale",
    _KIND.REDUCTION: "layout-missing-reduction",
    _KIND.TIED: "layout-missing-reduction",
    _KIND.FORWARD: "layout-difference",
    _KIND.LOSS: "layout-difference",
    _KIND.DIFFERENCE: "layout-difference",
}


def findings_about_layouts(comparison: LayoutComparison) -> list[Finding]:
    """Return what is wrong with the candidate's layout, the cause first."""
    return [_finding(fault) for fault in comparison.faults]


def _finding(fault: LayoutFault) -> Finding:
    return error(
        rule=_CODE_OF[fault.kind],
        confidence=fault.confidence,
        step=fault.step,
        rank=fault.rank,
        phase=fault.phase,
        site=fault.site,
        parameter=fault.parameter,
        title=fault.title,
        why="\n".join(fault.why),
        fix=fault.fix,
        evidence=({"kind": str(fault.kind), **fault.numbers},),
    )


_DETECTED = (
    "What the ranks of a run hold is put together and compared with a run of the same training with another layout, "
    "usually of one rank: `roundoff compare` and `roundoff layouts`. "
)

LAYOUT_CODES = (
    Code(
        name="layout-inputs",
        means="Ranks began with something else than a run with another layout: other inputs, only a part of the batch, "
        "or other weights. Nothing after that can be compared.",
        detected=_DETECTED + "Inputs and start values of each rank are parts of the reference's, or they are not.",
        fix="Give ranks that share the work of a layer the same batch, divide it between those that share the batch, "
        "and cut every part out of the same whole weights.",
    ),
    Code(
        name="layout-dropout",
        means="Ranks that hold the same tensor draw different random numbers for it, or ranks that hold different "
        "parts of one draw the same ones.",
        detected=_DETECTED + "Of ranks with the same inputs, the hashes of the random numbers of a site are compared: "
        "equal where the site's tensor has the reference's shape, different where it is a part of it.",
        fix="Keep two generators: one that is seeded the same on all ranks of the group, for tensors that they all "
        "hold, and one that is seeded by rank.",
    ),
    Code(
        name="layout-gradient-scale",
        means="Gradients are a multiple of those of a run with another layout, often by the number of ranks of a "
        "group or of micro-batches.",
        detected=_DETECTED + "The gradient that the optimizer gets is the same multiple of the reference's on all "
        "ranks; the factor is looked up among the sizes of the layout.",
        fix="Divide where a sum took the place of a mean, and reduce in backward only what differs between ranks.",
    ),
    Code(
        name="layout-missing-reduction",
        means="Ranks go on with their own summand of a result or gradient, where a run with another layout has the sum "
        "or the mean over a group of ranks. This includes the two copies of a weight that two stages share.",
        detected=_DETECTED + "What the ranks hold differs, and its sum or mean over some of them is the reference's.",
        fix="Reduce it over the group that the finding names.",
    ),
    Code(
        name="layout-difference",
        means="A result, loss, gradient or update differs from that of a run with another layout, and neither a factor "
        "nor a missing reduction explains it.",
        detected=_DETECTED + "The losses do not make up the reference's, and the first result of the forward pass that "
        "differs is named; or a gradient differs although all losses agree.",
        fix="Check what the named module computes on each rank, and what it exchanges with others.",
    ),
)
"""Codes of findings that compare two layouts."""
