import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import Run

TINY = ("--limit", "64", "--batch-size", "16", "--width", "4", "--epochs", "1", "--threads", "1")


def train(*words: str) -> Result:
    return CliRunner().invoke(command_line, ["train", *words])


def test_a_training_shows_each_epoch_and_ends_with_how_good_it_is_and_where(tmp_path: Path):
    answer = train(*TINY, "--runs", str(tmp_path), "--epochs", "2")
    assert answer.exit_code == 0, answer.output
    first, second = answer.stderr.splitlines()
    assert first.startswith("epoch 1/2  loss ")
    assert second.startswith("epoch 2/2  loss ")
    assert "top-1 " in second
    verdict, curve, where = answer.stdout.splitlines()
    assert verdict.startswith("top-1 ")
    assert " %  top-5 " in verdict
    assert " after 8 steps in " in verdict
    assert re.fullmatch(r"loss   [▁▂▃▄▅▆▇█]{8}  \d\.\d+ to \d\.\d+", curve)
    assert where == f"run    {tmp_path / 'train-1'}"


def test_a_machine_gets_json_and_nothing_else(tmp_path: Path):
    answer = train(*TINY, "--runs", str(tmp_path), "--name", "mine", "--json")
    assert (answer.exit_code, answer.stderr) == (0, "")
    result = json.loads(answer.stdout)
    assert (result["run"], result["steps"], result["ended_nonfinite"]) == (str(tmp_path / "mine"), 4, False)


def test_a_training_that_ends_with_nan_ends_with_1_and_says_how_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["roundoff", "train", "--lr", "1e30"])
    answer = train(*TINY, "--runs", str(tmp_path), "--lr", "1e30")
    assert answer.exit_code == 1
    assert "the loss was not finite in " in answer.stdout
    assert answer.stdout.splitlines()[-1] == "next   roundoff record --steps 0-1 -m roundoff train --lr 1e30"


def test_a_training_goes_on_where_another_stopped(tmp_path: Path):
    train(*TINY, "--runs", str(tmp_path), "--steps", "2")
    answer = train(*TINY, "--runs", str(tmp_path), "--resume", str(tmp_path / "train-1"))
    assert answer.exit_code == 0, answer.output
    assert f"resumed from {tmp_path / 'train-1'} at step 2" in answer.stdout


def test_resuming_a_finished_training_says_that_nothing_is_left(tmp_path: Path):
    train(*TINY, "--runs", str(tmp_path))
    answer = train(*TINY, "--runs", str(tmp_path), "--resume", str(tmp_path / "train-1"))
    assert answer.exit_code == 0, answer.output
    assert "nothing left to train: 4 steps were requested" in answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--fsdp",),
            "TrainError: --fsdp needs several ranks.\n"
            "  why: there is only one.\n"
            "  fix: use --procs 2, or torchrun --nproc-per-node 2\n",
        ),
        (
            ("--batch-size", "65", "--procs", "2"),
            "TrainError: A batch of 65 cannot be divided by 2.\n"
            "  why: it is split into 2 ranks x 1 microbatch.\n"
            "  fix: for example: --batch-size 64\n",
        ),
        (
            ("--loss-scale", "big"),
            "TrainError: Invalid --loss-scale 'big'.\n"
            "  why: allowed: 0 (dynamic), a positive number (static), none, dynamic, or one of dynamic:apex, "
            "dynamic:torch, dynamic:mindspore, dynamic:fp16_optimizer.\n",
        ),
        (
            ("--data", "mnist"),
            "TrainError: Invalid --data 'mnist'.\n"
            "  why: known are digits, fashion-mnist, idx:PATH, folder:PATH, text:PATH.\n",
        ),
        (
            ("--limit", "10", "--runs", "unused"),
            "DataError: 10 training samples do not fill one batch of 64.\n"
            "  fix: use a smaller batch, --batch-size 8, or more data.\n",
        ),
        (
            ("--shrink", "3"),
            "TrainError: --shrink has no effect here.\n"
            "  why: it only applies to fashion-mnist and idx:PATH.\n"
            "  fix: remove --shrink.\n",
        ),
        (
            ("--eval-only",),
            "TrainError: --eval-only needs --resume.\n"
            "  why: without it the weights are random.\n"
            "  fix: pass a run folder or a checkpoint: --resume runs/train-1\n",
        ),
        (
            ("--name", "../mine"),
            "TrainError: Invalid --name '../mine'.\n"
            "  why: it must be the name of a folder, without a path; --runs sets the parent directory.\n",
        ),
        (
            ("--recipe", "mine.toml"),
            "RecipeError: Recipe file 'mine.toml' cannot be read.\n"
            "  why: there is no such file.\n"
            "  fix: start from a known recipe: roundoff recipes show O2 > mine.toml\n",
        ),
        (
            ("--eps", "1e-4"),
            "TrainError: --eps has no effect here.\n"
            "  why: it only applies to optimizers other than sgd.\n"
            "  fix: remove --eps.\n",
        ),
        (
            ("--resume", "nowhere"),
            "TrainError: There is no checkpoint 'nowhere'.\n"
            "  fix: pass a run folder or a checkpoint: --resume runs/train-1\n",
        ),
    ],
)
def test_mistakes_end_with_2_and_what_to_do(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    answer = train(*words)
    assert (answer.exit_code, answer.stderr) == (2, message)
    assert list(tmp_path.iterdir()) == []


def test_a_warning_is_a_line_of_the_answer(tmp_path: Path):
    words = ("--recipe", "half", "--optimizer", "adam", "--steps", "1", "--runs", str(tmp_path))
    answer = train(*TINY, *words)
    assert answer.stdout.splitlines()[1].startswith("Adam's eps 1e-08 is 0 in fp16, so recipe 'half' will divide by 0")
    assert "eps" not in train(*TINY, *words, "--eps", "1e-4").output


def test_any_flavour_of_dynamic_loss_scaling_can_be_chosen(tmp_path: Path):
    words = ("--recipe", "O2", "--loss-scale", "dynamic:mindspore", "--runs", str(tmp_path), "--json")
    assert train(*TINY, *words).exit_code == 0
    (first, *_) = Run.open(tmp_path / "train-1").metrics(rank=0)
    assert first.loss_scale == 2.0**24


def test_an_unknown_recipe_ends_with_2(tmp_path: Path):
    answer = train("--recipe", "O9", "--runs", str(tmp_path))
    assert answer.exit_code == 2
    assert answer.stderr.startswith("RecipeError: ")
    assert "O9" in answer.stderr
