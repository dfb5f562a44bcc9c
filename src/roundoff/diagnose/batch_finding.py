"""The finding about values that were bad in the data already."""

from __future__ import annotations

from roundoff.diagnose.bad_step import BadStep
from roundoff.diagnose.numbers import plural
from roundoff.diagnose.origin import OriginPlace
from roundoff.diagnose.origin_finding import evidence_of
from roundoff.diagnose.sample import bad_index_in_batch
from roundoff.diagnose.spread import spread_of
from roundoff.runs import Finding, JsonValue, Severity


def nonfinite_input(bad: BadStep, place: OriginPlace) -> Finding:
    """Say which sample of the batch, and which of its features, is not finite."""
    event = place.bad
    found = bad_index_in_batch(bad)
    what = "NaN" if event.num_nan else "infinity"
    verb = "is" if event.num_nonfinite == 1 else "are"
    where = f"{event.num_nonfinite} of {event.num_elements} elements {verb} not finite"
    evidence: list[JsonValue] = list(evidence_of(bad, place))
    if found is not None:
        key, index = found
        sample, feature = index[0] if index else 0, index[1:]
        where += f", the first in sample {sample} of the batch" + (f", feature {_feature(feature)}" if feature else "")
        evidence.append({"batch": key, "index": list(index)})
    return Finding(
        rule="nonfinite-input",
        severity=Severity.ERROR,
        confidence=0.95 if event.op == "input" else 0.85,
        step=bad.step,
        rank=bad.rank,
        phase=event.phase,
        site=event.site,
        op=None if event.op == "input" else event.op_name,
        source=event.source,
        title=f"the batch holds {what}",
        why=f"{where}; {plural(max(event.shape[0], 1), 'sample') if event.shape else 'a scalar'} came in"
        f"\n{spread_of(bad, place)}",
        fix="look at this sample in the data set; clean it, or leave samples out that are not finite: "
        "torch.isfinite(x).all()",
        evidence=tuple(evidence),
    )


def _feature(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(tuple(index))
