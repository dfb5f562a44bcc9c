"""The messages about the trainings of a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from roundoff.experiments.plan.plan_session import PlanOptions, PlanSession
from roundoff.experiments.trials.targets import CommandTarget
from roundoff.experiments.trials.trial import TrialSetting


def lines_of(num_runs: int, *, options: PlanOptions, folder: Path) -> list[str]:
    """Return the lines about some runs of a command, the first of which names the folder."""
    messages: list[str] = []
    options = replace(options, runs=folder, name="here", jobs=0)
    session = PlanSession.open(CommandTarget(words=("sleep", "0.6")), options, on_message=messages.append)
    session.trials.run_all([TrialSetting(recipe="fp32", seed=seed) for seed in range(num_runs)])
    return messages[1:]


def test_every_training_is_counted_and_reports_the_time_left(tmp_path: Path) -> None:
    first, *_, last, beyond = lines_of(5, options=PlanOptions(seeds=2), folder=tmp_path)
    assert re.fullmatch(r"\[1/4\] fp32, seed 0: exit code 0 after \d+\.\d s; about \d+ s left", first)
    assert last.startswith("[4/4] fp32, seed 3:")
    assert beyond.startswith("[5] fp32, seed 4:")
    assert "left" not in last + beyond
