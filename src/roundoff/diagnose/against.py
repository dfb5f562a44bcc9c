"""What differs from a reference run, as findings: the first op that differs, and the settings that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roundoff.compare.layouts.layout_comparison import compare_layouts, layouts_differ
from roundoff.compare.runs.divergence import ComparedTensor, Divergence
from roundoff.compare.runs.run_comparison import RunComparison, compare_runs
from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind
from roundoff.diagnose.layout_findings import LAYOUT_CODES, findings_about_layouts
from roundoff.diagnose.rule import Code, Rule, error, warning
from roundoff.diagnose.wording import format_distinct, format_of, format_short
from roundoff.runs import Finding, JsonValue, Run, Severity, object_of
from roundoff.runs.records.event import LOOP
from roundoff.words import plural

_MATTERS = 0.5
"""A difference at least as suspicious as this is a warning, others are notes."""
_MIN_SUSPICION = 0.1
"""Less suspicious differences cannot matter, and are not reported by themselves."""
_MAX_SETTINGS = 8
_MAX_SHAPES = 3
_SCALAR = "a single number"
_CLEAN = 0.01
"""An op whose inputs differ by this part of the first difference shows whether it is right itself."""
_EXPLAINING = {
    "data": (SettingKind.DATA, SettingKind.SEED),
    "start values": (SettingKind.START_VALUE, SettingKind.SEED),
    "randomness": (SettingKind.SEED,),
    "forward": (SettingKind.LOSS,),
    "backward": (SettingKind.LOOP,),
    "optimizer": (SettingKind.HYPERPARAMETER, SettingKind.LOOP, SettingKind.MODEL),
    "collective": (SettingKind.RANKS,),
}
"""Which settings explain a difference of each cause, wherever it is."""


def reference_rule(reference: Run) -> Rule:
    """Return the rule that compares a run with a reference; it comes after all others."""
    return Rule(
        order=10_000,
        checks=f"what differs from {reference.path}",
        find=lambda run: _findings(reference, run),
        codes=AGAINST_CODES,
    )


def _findings(reference: Run, run: Run) -> list[Finding]:
    if layouts_differ(reference, run):
        return findings_about_layouts(compare_layouts(reference, run))
    return findings_against(compare_runs(reference, run))


def findings_against(comparison: RunComparison) -> list[Finding]:
    """Return the first difference with the settings that explain it, or else the settings alone, as a note."""
    settings_finding = config_difference(comparison.settings)
    first = first_divergence(comparison)
    if first is None:
        agrees = bool(comparison.rows)
        if settings_finding is None:
            return []
        if agrees and (other := config_difference([each for each in comparison.settings if _is_of_evaluation(each)])):
            why = f"every recorded training step agrees\n{other.why}"
            return [replace(other, title=other.title.replace("the runs differ in", "the runs evaluate differently:"),
                            why=why, related=(settings_finding,))]  # fmt: skip
        return [replace(settings_finding, severity=Severity.NOTE) if agrees else settings_finding]
    settings = [] if comparison.divergence is None else _explaining(comparison.divergence, comparison.settings)
    if settings:
        first = _name_setting(first, settings)
    return [first if settings_finding is None else replace(first, related=(*first.related, settings_finding))]


def _is_of_evaluation(setting: SettingDifference) -> bool:
    return setting.kind is SettingKind.EVALUATION


def _explaining(divergence: Divergence, settings: tuple[SettingDifference, ...]) -> list[SettingDifference]:
    """Return the settings that explain a difference: those of its place or, in an optimizer's step, the optimizer's."""
    place = {divergence.site, divergence.parameter} - {None}
    here = [setting for setting in settings if not place.isdisjoint((*setting.places, *setting.about))]
    kinds = _EXPLAINING.get(divergence.cause, ())
    if divergence.cause == "forward" and divergence.site != LOOP:
        kinds = ()
    suggested = [setting for setting in settings if setting.kind in kinds and setting.suspicion >= _MATTERS]
    suggested = [setting for kind in kinds for setting in suggested if setting.kind == kind]
    return suggested or here if divergence.cause == "optimizer" else here or suggested


def _name_setting(first: Finding, settings: list[SettingDifference]) -> Finding:
    """Name the settings that explain a difference; one of an optimizer or a loss is the verdict itself."""
    lines = [f"the runs differ in {setting.text}" for setting in settings[:3]]
    fix = f"make {settings[0].what} the same in both runs"
    if settings[0].kind not in (SettingKind.HYPERPARAMETER, SettingKind.LOSS):
        return replace(first, why="\n".join([first.why, *lines]), fix=fix)
    where = f"step {first.step}, {first.phase}"
    shown = [line for line in first.why.splitlines() if not line.startswith("its result ")]  # the op is right
    why = [f"it shows first here: {first.title}", *shown, *lines[1:]]
    return replace(first, title=f"{lines[0]}: {where}", why="\n".join(why), fix=fix)


def config_difference(differences: Sequence[SettingDifference]) -> Finding | None:
    """Return how settings differ (the most suspicious comes first); None if no difference could matter."""
    shown = [difference for difference in differences if difference.suspicion >= _MIN_SUSPICION]
    if not shown:
        return None
    return Finding(
        rule="config-difference",
        severity=Severity.WARNING if shown[0].suspicion >= _MATTERS else Severity.NOTE,
        confidence=shown[0].suspicion,
        title=f"the runs differ in {shown[0].what}"
        + (f" and in {plural(len(shown) - 1, 'other setting')}" if len(shown) > 1 else ""),
        why="\n".join(_describe_settings(shown)),
        fix=f"make {shown[0].what} the same in both runs, and compare again",
        site=shown[0].places[0] if len(shown[0].places) == 1 else None,
        evidence=tuple(_describe(each) for each in differences),
    )


def _describe(setting: SettingDifference) -> dict[str, JsonValue]:
    found = {**object_of(setting), "places": list(setting.places)}
    del found["about"]
    return found


def _describe_settings(shown: list[SettingDifference]) -> list[str]:
    lines = [f"{difference.text} ({difference.kind})" for difference in shown[:_MAX_SETTINGS]]
    more = len(shown) - _MAX_SETTINGS
    return [*lines, f"{plural(more, 'more difference')}"] if more > 0 else lines


def first_divergence(comparison: RunComparison) -> Finding | None:
    """Return the op or tensor that introduces the first difference, or None if formats explain all differences."""
    found = comparison.divergence
    if found is None:
        return _later_divergence(comparison)
    return error(
        rule="first-divergence",
        confidence=_confidence(found),
        step=found.step,
        rank=found.rank if len(comparison.ranks) > 1 else None,
        phase=found.phase,
        site=found.site,
        op=None if found.cause in ("data", "start values") else found.op,
        parameter=found.parameter,
        source=found.source,
        title=_divergence_title(found),
        why="\n".join(_why(found, comparison)),
        fix=_fix(found),
        evidence=(
            {
                "cause": found.cause,
                "relative": found.relative,
                "introduced_ulps": found.introduced_ulps,
                "inherited_ulps": found.inherited_ulps,
                "format": format_of(found.format),
                "channel": found.channel,
                "num_channels": found.num_channels,
                "shape": None if (row := _row_of(found, comparison)) is None else row.shape,
                "only_in": found.is_only_in,
                "num_later": found.num_later,
            },
        ),
    )


def _confidence(found: Divergence) -> float:
    if not found.knows_inputs:
        return 0.6
    return 0.99 if found.inherited_ulps == 0 else 0.9


def _later_divergence(comparison: RunComparison) -> Finding | None:
    """Return a finding if the losses diverge in a step that was not recorded, or None."""
    losses = comparison.losses
    if losses is None or losses.first_divergence is None:
        return None
    stretch, step = losses.stretches[0], losses.first_divergence
    recorded = f"steps {', '.join(map(str, comparison.steps))}" if comparison.steps else "no step"
    return warning(
        rule="first-divergence",
        confidence=0.8,
        step=step,
        title=f"the losses diverge at step {step}",
        why=f"from there on the loss is {format_short(stretch.candidate)}, that of the reference "
        f"{format_short(stretch.reference)}: more than the reference's own noise\nboth recorded {recorded}, where "
        "formats explain every difference",
        fix=f"record the steps around it in both runs, with `roundoff record --steps {max(0, step - 1)}-{step}`, and "
        "compare again",
        evidence=({"step": step, "reference": stretch.reference, "candidate": stretch.candidate},),
    )


def _divergence_title(found: Divergence) -> str:
    if found.factor is not None:
        return f"the reduced gradients are {format_short(found.factor)} times those of the reference"
    place = " / ".join(part for part in (found.site, found.op, found.parameter) if part)
    when = f"step {found.step}, {found.phase}"
    if found.channel is not None:
        when += f", channel {found.channel} of {found.num_channels}"
    if found.shapes is not None:
        return f"{place} has the shape {found.shapes[1]} instead of {found.shapes[0]}: {when}"
    if found.op == "parameter" and found.cause == "optimizer":
        return f"{found.parameter or found.site} was updated differently before step {found.step}"
    if found.cause == "data":
        return f"the runs got different data: {place}, {when}"
    if found.cause == "start values":
        return f"the runs started from different weights: {found.parameter or found.site}, {when}"
    if found.cause == "randomness":
        return f"{place} draws different random numbers: {when}"
    if _reads_other_tensor(found):
        return f"{place} reads a different tensor from the reference, its {found.output}: {when}"
    if found.is_only_in is not None:
        return f"{place}, which only the {found.is_only_in} runs, introduces the first difference: {when}"
    if not found.knows_inputs:
        return f"{place} is the first result that differs by more than its format explains: {when}"
    return f"{place} introduces the first difference: {when}"


def _reads_other_tensor(found: Divergence) -> bool:
    """Say whether an input differs that no op of the step computed: a buffer, a mask, a constant."""
    return found.output.startswith("input") and found.cause not in ("data", "start values")


def _why(found: Divergence, comparison: RunComparison) -> list[str]:
    lines = [_amount(found)]
    if (row := _row_of(found, comparison)) is not None:
        lines.append(_shape_line(row, comparison))
    if found.is_only_in is not None and (others := _unpaired_before(found, comparison)):
        lines.append(f"it may come from an op before it that only the {found.is_only_in} runs: {', '.join(others)}")
    if found.num_later:
        lines.append(f"{found.num_later} later results differ because of it")
    losses = comparison.losses
    if losses is not None and losses.points:
        reference, candidate = format_distinct(losses.points[0].reference, losses.points[0].candidate)
        both = (
            f"{reference} in both" if reference == candidate else f"{reference} in the reference and {candidate} here"
        )
        lines.append(f"the first loss is {both}")
    return lines


def _row_of(found: Divergence, comparison: RunComparison) -> ComparedTensor | None:
    """Return the result that differs first; None if it is not that of an op which both runs have."""
    if found.is_only_in is not None or found.shapes is not None or "#" not in found.op:
        return None
    key = (found.step, found.rank, found.phase, found.site, found.op, found.output)
    rows = comparison.rows
    return next((row for row in rows if (row.step, row.rank, row.phase, row.site, row.op, row.output) == key), None)


def _shape_line(row: ComparedTensor, comparison: RunComparison) -> str:
    """Name the shape of the result, and others for which the op is right, given inputs that hardly differ."""
    name = _name_of(row.op)
    right = {
        other.shape or _SCALAR
        for other in comparison.rows
        if _name_of(other.op) == name and other.output == row.output and other.shape != row.shape
        if other.excess <= 1 and other.inherited <= _CLEAN * row.relative
    }
    line = f"its result has the shape {row.shape}" if row.shape else f"its result is {_SCALAR}"
    return f"{line}; {name} is right for {', '.join(sorted(right)[:_MAX_SHAPES])}" if right else line


def _name_of(op: str) -> str:
    return op.partition("#")[0]


def _unpaired_before(found: Divergence, comparison: RunComparison) -> list[str]:
    """Return the ops before it, in its site and phase, that only its run has."""
    place = (found.is_only_in, found.step, found.phase, found.site)
    alone = [op.op for op in comparison.unpaired if (op.side, op.step, op.phase, op.site) == place]
    return alone[: alone.index(found.op)] if found.op in alone else []


def _amount(found: Divergence) -> str:
    before = _describe_before(found)
    if found.cause in ("data", "start values") or found.op == "parameter":
        differ = f"they differ by {_share(found.relative)} of their norm"
        return f"{differ}; nothing before them differs" if before == _NOTHING_DIFFERS else f"{differ}; {before}"
    if found.factor is not None:
        return "this holds for most parameters of the first step; the number of ranks should not change them"
    agrees = _AGREES if before == _NOTHING_DIFFERS else before
    if found.shapes is not None or found.cause == "randomness":
        return agrees
    unit = f"ulp ({format_of(found.format)})"
    introduced, inherited = format_short(found.introduced_ulps), format_short(found.inherited_ulps)
    is_rounded = found.format.startswith(("float", "bfloat"))
    amount = f"{introduced} {unit}" if is_rounded else f"{_share(found.relative)} of its norm"
    if not found.knows_inputs:
        return f"it differs by {amount}; its inputs were not recorded, so it may have inherited that"
    return f"introduced {amount}, inherited {inherited} ulp; {agrees}"


_AGREES = "everything before it agrees within its format"
_NOTHING_DIFFERS = "nothing before it differs"


def _describe_before(found: Divergence) -> str:
    """Say what is known about all results before the first difference: only what was compared."""
    if found.num_unjudged_before:
        unknown = plural(found.num_unjudged_before, "result")
        return f"what was compared before it agrees within its format, {unknown} could not be compared"
    return _AGREES if found.num_different_before else _NOTHING_DIFFERS


def _share(relative: float) -> str:
    """Write a relative difference.

    >>> _share(0.0123), _share(3e-7), _share(1.7)
    ('1.2 %', '3e-07', '170 %')
    """
    if relative >= 10 or relative < 1e-4:
        return f"{relative:.2g}"
    return f"{100 * relative:.2g} %" if relative < 0.995 else f"{100 * relative:.0f} %"


def _fix(found: Divergence) -> str:
    fixes = {
        "data": "use the same batches in the same order: the same files, transforms, sampler and seed",
        "start values": "start both from one checkpoint, or set the same seed before the model is built",
        "randomness": "set the same seed before the first step, or switch dropout off for the comparison",
        "optimizer": "compare the optimizer's settings of the two runs, and its implementation",
        "collective": "compare how gradients are reduced: sum or mean, which ranks, which format",
    }
    if _reads_other_tensor(found):
        return f"compare the buffers and constants of {found.site} on both sides, and how they are computed"
    if found.cause in ("data", "start values"):
        return fixes[found.cause]
    if found.is_only_in is not None:
        return f"check why only the {found.is_only_in} runs it"
    if not found.knows_inputs:
        return "to know what the op itself adds, make both runs with `roundoff run`, or with `roundoff record --inputs`"
    if found.site == LOOP and found.source is not None:
        return f"compare the line {found.source} on both sides"
    return fixes.get(found.cause, "compare this op's settings and its kernel on both sides")


AGAINST_CODES = (
    Code(
        name="first-divergence",
        means="Of all ops of the two runs, this is the first whose result differs by more than its format explains, "
        "given its own inputs. Everything after it differs because of it.",
        detected="Two runs are compared op by op: how far the results of an op are apart, how much of that its own "
        "inputs explain, and how much rounding in its format allows.",
        fix="Check the op and the settings that the finding names: another epsilon, another kernel, another seed. "
        "Formats alone are never reported as a difference.",
    ),
    Code(
        name="config-difference",
        means="The two runs have different settings: hyperparameters, modules, data, seeds, packages.",
        detected="What the two runs recorded about themselves is compared: loss, hyperparameters, modules, calls, "
        "data, seeds, environment.",
        fix="Align them one at a time, starting with the first, the most suspicious one.",
    ),
    *LAYOUT_CODES,
)
"""Codes of findings that need a reference run."""
