"""A planned recipe is compared with fp32, within a budget."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.bisect.judgements import Budget, OutOfBudget
from roundoff.experiments.plan.plan_session import PlanFolder, PlanOptions, PlanSession
from roundoff.experiments.plan.verification import Verifier
from roundoff.experiments.trials.judges import trial_seeds
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.targets import TrainTarget
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.precision import find_recipe
from roundoff.train import TrainConfig

Loss = Callable[[str, int], float]


def verifier(folder: Path, loss: Loss, *, budget: Budget | None = None, exit_code: int = 0) -> Verifier:
    """Return one whose trainings end with `loss(recipe's name, seed)`."""

    def try_settings(settings: Sequence[TrialSetting]) -> list[TrialResult]:
        ended = []
        for setting in settings:
            assert setting.recipe is not None
            assert setting.steps == 10
            number = loss(find_recipe(setting.recipe).name, setting.seed or 0)
            ended.append(TrialResult(losses=(3.0, number), exit_code=exit_code, folder=folder))
        return ended

    return Verifier(
        run_trials=try_settings,
        folder=PlanFolder(path=folder),
        seeds=(0, 1, 2),
        num_steps=10,
        budget=budget or Budget(),
    )


def test_a_recipe_that_trains_as_fp32_does_is_good(tmp_path: Path) -> None:
    verification = verifier(tmp_path, lambda name, seed: 1.0 + seed / 100).verify(find_recipe("O2"))
    assert verification.is_good
    assert verification.losses == (1.0, 1.01, 1.02)
    assert verification.text == (
        "3 trainings of 2 steps ended with a loss of 1, 1.01, 1.02; fp32 has 1.01 +- 0.01 of 3 runs, "
        f"at most {verification.judge.limit:.4g} is good"
    )


def test_a_recipe_that_is_worse_under_one_seed_is_not_good(tmp_path: Path) -> None:
    def loss(name: str, seed: int) -> float:
        return 2.5 if (name, seed) == ("O2", 1) else 1.0 + seed / 100

    verification = verifier(tmp_path, loss).verify(find_recipe("O2"))
    assert not verification.is_good
    assert verification.bad_seeds == (1,)


def test_a_training_that_fails_in_fp32_cannot_be_planned(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="not finite at step 1"):
        verifier(tmp_path, lambda name, seed: float("nan")).judge()
    with pytest.raises(PlanError, match="ended with exit code 3"):
        verifier(tmp_path, lambda name, seed: 1.0, exit_code=3).judge()


def test_a_budget_counts_every_trial_once(tmp_path: Path) -> None:
    trials = verifier(tmp_path, lambda name, seed: 1.0, budget=Budget(max_runs=6))
    trials.verify(find_recipe("O2"))
    trials.verify(find_recipe("O2"))
    assert trials.num_trials == 6
    with pytest.raises(OutOfBudget):
        trials.is_good(find_recipe("half"), seed=0)


def test_plan_and_bisection_measure_noise_with_the_same_seeds(tmp_path: Path) -> None:
    folder = PlanFolder(path=tmp_path)
    trials = TrialRunner(TrainTarget(config=TrainConfig(seed=7)), folder)
    session = PlanSession(folder=folder, trials=trials, recipe_file=folder.recipe)
    assert trial_seeds(3) == [None, 1000, 1001]  # None is the training's own seed
    assert Verifier.for_session(session, PlanOptions(seeds=3)).seeds == (7, 1000, 1001)
