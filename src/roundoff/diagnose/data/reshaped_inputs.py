"""Data whose dimensions were to be exchanged, and were only renamed."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, rule, warning
from roundoff.runs import Finding, ReshapeProbe, Run


@rule(
    Code(
        name="reshaped-not-permuted",
        means="Data was reshaped to the shape that it has when its dimensions are permuted. That leaves all numbers in "
        "their order: rows, columns, channels or time steps are mixed up.",
        fix="Use `permute` (or `transpose`) instead of `view` or `reshape`.",
    ),
    order=506,
    checks="data that is reshaped where its dimensions must be permuted",
    needs=[needs.probe(ReshapeProbe, missing="no data was reshaped to permuted dimensions")],
)
def reshaped_data(run: Run) -> Finding | None:
    """Find a reshape outside of any graph whose result has the same dimensions in another order."""
    for probe in run.probes(ReshapeProbe):
        order = _order(probe.shape, probe.new_shape)
        return warning(
            rule="reshaped-not-permuted",
            confidence=0.9,
            step=probe.step,
            source=probe.source,
            title="dimensions are exchanged by a reshape, which mixes up the data",
            why=f"a tensor of shape {probe.shape} is reshaped to {probe.new_shape}: the same sizes in another order, "
            "but the numbers stay where they are, so that each new row is made of parts of several old ones",
            fix=f"use permute({', '.join(map(str, order))}) instead of view or reshape",
            evidence=({"shape": list(probe.shape), "new_shape": list(probe.new_shape)},),
        )
    return None


def _order(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Return a permutation that gives the new shape; dimensions of the same size keep their order."""
    left = list(range(len(before)))
    found = []
    for size in after:
        place = next((axis for axis in left if before[axis] == size), None)
        if place is not None:
            left.remove(place)
            found.append(place)
    return found
