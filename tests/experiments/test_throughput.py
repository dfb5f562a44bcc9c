import pytest

from roundoff.experiments.throughput import (
    Launch,
    Speed,
    all_launches,
    fastest,
    measure_throughput,
)
from roundoff.train import TrainConfig

TINY = TrainConfig(width=4, batch_size=16)


def launch(**changes: object) -> Launch:
    return Launch(**{"recipe": "fp32", "workers": 0, "threads": 1, "procs": 1, **changes})


def test_every_combination_is_tried():
    tried = all_launches(recipes=["fp32", "O2"], workers=[0, 2], threads=[1, 2], procs=[1])
    assert len(tried) == len(set(tried)) == 8
    assert tried[0] == launch()
    assert tried[1] == launch(workers=2)


def test_measures_speed_first_batch_and_use_of_cores():
    reported: list[Speed] = []
    (speed,) = measure_throughput(TINY, [launch()], seconds=0.2, on_speed=reported.append)
    assert reported == [speed]
    assert speed.failure is None
    assert speed.samples_per_second is not None
    assert speed.samples_per_second > 0
    assert speed.first_batch_seconds is not None
    assert 0 < speed.first_batch_seconds < 120
    assert speed.cpu_share is not None
    assert 0 < speed.cpu_share < 2
    assert speed.steps >= 5


def test_ends_when_its_time_is_up_however_short_an_epoch_is():
    (speed,) = measure_throughput(TrainConfig(width=4, batch_size=1024), [launch()], seconds=0.1)
    assert speed.steps >= 5


@pytest.mark.slow
def test_several_ranks_share_the_batch_and_agree_on_the_end():
    (speed,) = measure_throughput(TINY, [launch(procs=2)], seconds=0.2)
    assert speed.failure is None
    assert speed.steps >= 5


def test_a_launch_that_cannot_be_says_so_and_the_others_go_on():
    odd = TrainConfig(width=4, batch_size=15)
    cannot, unknown, good = measure_throughput(odd, [launch(procs=2), launch(recipe="O9"), launch()], seconds=0.1)
    assert cannot.failure == "A batch of 15 cannot be divided by 2."
    assert unknown.failure is not None
    assert unknown.failure.startswith("RecipeError: No recipe 'O9'.")
    assert good.failure is None


@pytest.mark.slow
def test_loader_workers_are_tried_for_real():
    (speed,) = measure_throughput(TINY, [launch(workers=1)], seconds=0.2)
    assert speed.failure is None


def test_the_fastest_of_the_measured_is_chosen():
    slow, quick, broken = (
        Speed(launch=launch(), samples_per_second=10.0),
        Speed(launch=launch(threads=2), samples_per_second=20.0),
        Speed(launch=launch(threads=3), failure="killed by SIGKILL"),
    )
    assert fastest([slow, quick, broken]) is quick
    assert fastest([broken]) is None


def test_the_command_says_what_differs_from_the_defaults():
    config = TrainConfig(
        data="folder:my pictures", model="resnet18", augment=("crop", "flip"), lr=0.05, loss_scale=None, threads=2
    )
    assert config.command() == (
        "roundoff train --data 'folder:my pictures' --model resnet18 --augment crop,flip --loss-scale none --lr 0.05 "
        "--threads 2"
    )


def test_every_option_of_the_command_exists():
    from roundoff.cli.train import train_command

    config = TrainConfig(
        width=8, lr_scaling=False, sync_bn=True, timeout_seconds=3.0, ema=0.9, clip=1.0, procs=2, workers=1, epochs=3
    )
    options = {option for param in train_command.params for option in param.opts}
    assert {word for word in config.command().split() if word.startswith("--")} <= options
