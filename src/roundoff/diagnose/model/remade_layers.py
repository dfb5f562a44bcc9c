"""Layers that a forward makes anew each time it runs, so that nothing can train them."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, rule
from roundoff.diagnose.step_flow import first_rank
from roundoff.runs import Finding, RemadeLayerProbe, Run


@rule(
    Code(
        name="layer-made-in-forward",
        means="A layer is created inside `forward`: it has other random weights in every step, no optimizer holds "
        "them, and no checkpoint contains them.",
        fix="Create the layer in `__init__`, before the optimizer is built, and only call it in `forward`.",
    ),
    order=207,
    checks="layers that are made in forward",
    needs=[needs.structure],
)
def remade_layers(run: Run) -> list[Finding]:
    """Find layers that a module makes, uses and drops, whose weights require gradients and differ from call to call.

    A layer whose start values are always the same, such as a norm, does no harm there.
    """
    return [_finding(run, probe) for probe in run.probes(RemadeLayerProbe)[:1]]


def _finding(run: Run, probe: RemadeLayerProbe) -> Finding:
    owner, _, kind = probe.site.rpartition("<")
    kind, owner = kind.partition(">")[0], owner.rstrip(".") or "the loop"
    return error(
        rule="layer-made-in-forward",
        confidence=0.95,
        step=0,
        rank=first_rank(run),
        phase="forward",
        site=owner,
        title=f"{owner} makes a new {kind} in every forward",
        why=f"{probe.num_made} different {kind} layers were made, used and dropped there, each with new random weights "
        "that require gradients: what one step learns the next has lost",
        fix=f"create the {kind} in __init__, before the optimizer is built, and only call it in forward",
        evidence=({"site": probe.site, "num_made": probe.num_made},),
    )
