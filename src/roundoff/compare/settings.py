"""What two runs were made of, and where that differs: the most suspicious first."""

from __future__ import annotations

from roundoff.compare.setting import Difference, SettingKind
from roundoff.compare.settings_data import data_differences
from roundoff.compare.settings_loop import loop_differences
from roundoff.compare.settings_run import run_differences
from roundoff.compare.settings_start import start_differences
from roundoff.compare.settings_structure import structure_differences
from roundoff.runs import Run

__all__ = ["Difference", "SettingKind", "differing_settings"]


def differing_settings(reference: Run, candidate: Run) -> list[Difference]:
    """Return what differs between two runs, from their folders alone: the most suspicious first.

    Hyperparameters, the loss, modules and their settings, the recipe, the order of calls, data and its order, start
    values, seeds, ranks, environment, packages, hardware and the command. Names, times and paths are left out. What a
    run does not tell (a recording has no structure, say) is not compared.
    """
    found = [
        *structure_differences(reference, candidate),
        *loop_differences(reference, candidate),
        *data_differences(reference, candidate),
        *start_differences(reference, candidate),
        *run_differences(reference, candidate),
    ]
    kinds = list(SettingKind)
    return sorted(found, key=lambda difference: (-difference.suspicion, kinds.index(difference.kind)))
