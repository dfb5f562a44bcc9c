"""What differs from a reference, as findings: the op that introduces it, and what the runs were told differently."""

from __future__ import annotations

from dataclasses import replace

from roundoff.compare.divergence import Divergence
from roundoff.compare.runs import RunComparison, compare_runs
from roundoff.compare.settings import Difference, SettingKind
from roundoff.diagnose.config_difference import config_difference
from roundoff.diagnose.first_divergence import first_divergence
from roundoff.diagnose.rules import Rule
from roundoff.runs import Finding, Run, Severity

AGAINST_CODES = ("first-divergence", "config-difference")

_EXPLAINING = {
    "data": (SettingKind.DATA, SettingKind.SEED),
    "start values": (SettingKind.START_VALUE, SettingKind.SEED),
    "randomness": (SettingKind.SEED,),
    "backward": (SettingKind.LOOP,),
    "optimizer": (SettingKind.HYPERPARAMETER, SettingKind.LOOP, SettingKind.MODEL),
    "collective": (SettingKind.RANKS,),
}
"""Which settings explain a difference of each cause, wherever it is."""


def against(reference: Run) -> Rule:
    """Return the rule that holds a run against a reference; `diagnose_run` takes it after all others."""
    return Rule(
        codes=AGAINST_CODES,
        checks=f"what differs from {reference.path}",
        find=lambda run: findings_against(compare_runs(reference, run)),
    )


def findings_against(comparison: RunComparison) -> list[Finding]:
    """Return the first difference, with the settings that explain it; or the settings alone, which are a note then."""
    told = config_difference(comparison.settings)
    first = first_divergence(comparison)
    if first is None:
        agrees = bool(comparison.rows)
        return [] if told is None else [replace(told, severity=Severity.NOTE) if agrees else told]
    settings = [] if comparison.divergence is None else _explaining(comparison.divergence, comparison.settings)
    if settings:
        lines = [f"the runs differ in {setting.text}" for setting in settings[:3]]
        first = replace(first, why="\n".join([first.why, *lines]), fix=f"make {settings[0].what} the same in both runs")
    return [first if told is None else replace(first, related=(*first.related, told))]


def _explaining(divergence: Divergence, settings: tuple[Difference, ...]) -> list[Difference]:
    """Return the settings of the very place that differs, or else those that its cause speaks for."""
    here = [setting for setting in settings if divergence.site in setting.places]
    kinds = _EXPLAINING.get(divergence.cause, ())
    return here or [setting for setting in settings if setting.kind in kinds]
