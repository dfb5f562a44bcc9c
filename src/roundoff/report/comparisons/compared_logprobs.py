"""Two engines' log-probabilities of the same tokens: why they differ, ratios and KL, and which tokens differ most."""

from __future__ import annotations

import math
from dataclasses import dataclass

from roundoff.compare.logprobs.format_noise import FormatNoise
from roundoff.compare.logprobs.logprob_comparison import LogprobComparison
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.parts import Cell, Facts, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import Finding, JsonValue, object_of
from roundoff.words import plural

_LABEL_WIDTH = 12


@dataclass(frozen=True, kw_only=True)
class ComparedLogprobs(ComparisonReport):
    """A comparison of two engines."""

    comparison: LogprobComparison
    finding: Finding | None

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.comparison.candidate} against {self.comparison.reference}"

    def parts(self) -> list[Part]:
        """Say why the engines differ, or that their formats explain it, with the statistics that people watch."""
        found = self.finding
        if found is None:
            verdict: list[Part] = [Sentence(_agreement(self.comparison))]
        else:
            verdict = [
                Sentence(f"{found.title[:1].upper()}{found.title[1:]}."),
                *(Note(f"{line}.") for line in found.why.split("\n")),
            ]
        fix = [("fix", found.fix)] if found is not None else []
        return [*verdict, Facts([*fix, *_statistics(self.comparison)], label_width=_LABEL_WIDTH)]

    def tables(self) -> list[TablePart]:
        """Return the tokens that differ most."""
        names = ("sample", "position", "token", "reference", "candidate", "difference")
        rows = []
        for each in self.comparison.worst:
            numbers = (each.reference, each.candidate, each.candidate - each.reference)
            cells = [Cell(shown=each.sample, value=each.sample)]
            cells += [Cell(shown=str(number), value=number) for number in (each.position, each.token)]
            cells += [Cell(shown=f"{number:.5g}", value=number) for number in numbers]
            rows.append(TableRow(cells=cells))
        columns = [TableColumn(name=name, is_number=name != "sample") for name in names]
        return [TablePart(title="Tokens that differ most", columns=columns, rows=rows, noun="tokens")]

    def about(self) -> dict[str, str]:
        """Return what was compared."""
        return {"reference": self.comparison.reference, "candidate": self.comparison.candidate}

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        comparison, found = self.comparison, self.finding
        return {
            "reference": comparison.reference,
            "candidate": comparison.candidate,
            "verdict": _agreement(comparison) if found is None else found.title,
            "differs": comparison.differs,
            "cause": None if comparison.explanation is None else str(comparison.explanation.cause),
            "finding": None if found is None else found.to_object(),
            "num_tokens": comparison.num_tokens,
            "num_only_reference": comparison.num_only_reference,
            "num_only_candidate": comparison.num_only_candidate,
            "num_impossible": comparison.num_impossible,
            "statistics": object_of(comparison.statistics),
            "noise": {**object_of(comparison.noise), "limit": comparison.noise.limit},
            "share_flipped": comparison.share_flipped,
            "versions_behind": comparison.versions_behind,
            "worst": [object_of(each) for each in comparison.worst],
        }


def _agreement(comparison: LogprobComparison) -> str:
    statistics = comparison.statistics
    tokens = f"{plural(statistics.num_tokens, 'token')}"
    if statistics.max_abs == 0:
        return f"The engines agree bit for bit: {tokens}."
    return (
        f"The engines agree within the noise of their formats: {statistics.rms:.2g} nats over {tokens}, and "
        f"{_formats(comparison.noise)} explain about {comparison.noise.expected:.2g}."
    )


def _formats(noise: FormatNoise) -> str:
    first, second = noise.reference_dtype, noise.candidate_dtype
    return f"two engines in {first}" if first == second else f"{first} and {second}"


def _statistics(comparison: LogprobComparison) -> list[tuple[str, str]]:
    statistics, noise = comparison.statistics, comparison.noise
    assumed = "" if noise.is_stated else "; the tables do not state their formats: bfloat16 is assumed"
    found = [
        (
            "difference",
            f"{statistics.rms:.3g} nats (RMS), mean {statistics.mean_abs:.2g}, largest {statistics.max_abs:.3g}",
        ),
        ("formats", f"{_formats(noise)} explain {noise.expected:.2g} nats, at most {noise.limit:.2g}{assumed}"),
        ("KL", f"k1 {statistics.k1:.3g}, k3 {statistics.k3:.3g}"),
        (
            "ratios",
            f"{_share(statistics.share_outside)} outside 0.8-1.2, mean {statistics.mean_ratio:.4g}, "
            f"effective sample size {100 * statistics.ess:.4g} %",
        ),
    ]
    if comparison.share_flipped is not None:
        found.append(("experts", f"{_share(comparison.share_flipped)} of the tokens have other ones"))
    if comparison.versions_behind:
        found.append(("versions", f"the candidate is up to {comparison.versions_behind} behind"))
    if comparison.num_impossible:
        found.append(("impossible", f"{plural(comparison.num_impossible, 'token')} in one of the engines"))
    unpaired = comparison.num_only_reference, comparison.num_only_candidate
    if any(unpaired):
        found.append(("unpaired", f"{unpaired[0]} tokens only in the reference, {unpaired[1]} only in the candidate"))
    return found


def _share(share: float) -> str:
    return "none" if share == 0 else f"{100 * share:.3g} %" if math.isfinite(share) else "?"
