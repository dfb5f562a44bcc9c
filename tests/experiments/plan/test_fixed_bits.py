"""A paused training, whose next step can be run again."""

from dataclasses import replace

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.plan.fixed_bits import pausing_training
from roundoff.train import TrainConfig, train

SMALL = TrainConfig(width=4, limit=256, batch_size=64, threads=1, runs=None)


def test_the_step_is_the_one_that_the_training_takes_there() -> None:
    losses = train(replace(SMALL, steps=3)).losses
    with pausing_training(SMALL, after=0) as first:
        assert float(first.run()) == pytest.approx(losses[0], rel=1e-5)


def test_the_step_can_be_run_again() -> None:
    with pausing_training(SMALL, after=2) as standing:
        assert float(standing.run()) == pytest.approx(float(standing.run()), rel=1e-3)


def test_several_ranks_and_steps_beyond_the_epoch_are_refused() -> None:
    with pytest.raises(PlanError, match="several ranks"), pausing_training(replace(SMALL, procs=2), after=0):
        pass
    with pytest.raises(PlanError, match="no step 9"), pausing_training(SMALL, after=9):
        pass
