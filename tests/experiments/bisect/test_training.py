import json
from pathlib import Path

import pytest

from roundoff.experiments.bisect.bisect_options import BisectEvent, BisectOptions
from roundoff.experiments.bisect.bisection import bisect_training
from roundoff.experiments.trials.targets import ScriptTarget
from roundoff.precision import find_recipe
from roundoff.record.script import Script

HERE = Path(__file__).parent


def subject(name: str, *args: str) -> ScriptTarget:
    return ScriptTarget(script=Script(target=str(HERE / name), args=args))


@pytest.mark.slow
def test_a_wrong_backward_of_one_shape_is_found_to_the_op_in_a_script_without_recipes(tmp_path: Path):
    answer = bisect_training(
        subject("planted_wrong_op.py"), BisectOptions(substitute="fp64", seeds=1, judge="loss", runs=tmp_path)
    )
    assert answer.found == ("1:backward:planted.squash_backward",)
    assert answer.modules == ("1",)
    assert answer.num_runs <= 4
    assert any(
        note.startswith("planted.squash and planted.squash_backward ran the same kernels") for note in answer.notes
    )
    (again,) = answer.next_commands
    assert '"substitute.ops": "1:backward:planted.squash_backward"' in again


def test_the_recipe_holds_the_overrides_and_the_proof_as_comments(tmp_path: Path):
    events: list[BisectEvent] = []
    answer = bisect_training(
        subject("planted_overflow.py", "2", "4"),
        BisectOptions(modules_only=True, runs=tmp_path, jobs=0),
        on_event=events.append,
    )
    assert answer.recipe_file == tmp_path / "bisect-1" / "recipe.toml"
    recipe = find_recipe(answer.recipe_file)
    assert (recipe.name, recipe.compute_format, recipe.overrides) == ("half-bisected", "fp16", {"2": "fp32"})
    comments = [line for line in answer.recipe_file.read_text().splitlines() if line.startswith("#")]
    assert comments[0] == "# 2 must stay in fp32: good with it, bad without it."
    assert (tmp_path / "bisect-1" / "answer.json").exists()
    assert answer.is_measured
    assert answer.num_runs == 1
    lines = (tmp_path / "bisect-1" / "trials.jsonl").read_text().splitlines()
    assert answer.seconds == pytest.approx(sum(json.loads(line)["seconds"] for line in lines))
    took = f"1 run of the search and {answer.num_other_runs} to compare with; {answer.seconds:.0f} s"
    assert f"#   took       {took}" in comments


def test_a_search_without_new_runs_reports_how_long_its_runs_took(tmp_path: Path):
    first, again = (
        bisect_training(
            subject("planted_overflow.py", "2", "4"),
            BisectOptions(modules_only=True, seeds=1, runs=tmp_path, name="mine", jobs=0),
        )
        for _ in range(2)
    )
    assert first.seconds > 0
    assert again.seconds == pytest.approx(first.seconds)


def test_what_is_finite_is_judged_by_its_loss_and_searched_on_where_that_is_spoilt(tmp_path: Path):
    script = subject("planted_two_faults.py")
    answer = bisect_training(script, BisectOptions(modules_only=True, runs=tmp_path, jobs=0))
    assert set(answer.found) == {"3", "6"}
    assert answer.is_minimal
    assert set(answer.without) == {"3", "6"}
    assert answer.judge.startswith("loss: a loss above ")
    assert answer.notes[0].startswith("3 avoids NaN but leaves loss ")


def test_ops_that_were_found_by_nan_stay_when_the_loss_is_searched_by(tmp_path: Path):
    answer = bisect_training(subject("planted_two_faults.py"), BisectOptions(runs=tmp_path, jobs=0))
    assert {site.partition(":")[0] for site in answer.found} == {"3", "6"}
    assert all(":" in site for site in answer.found)
    assert find_recipe(answer.recipe_file).overrides == dict.fromkeys(answer.found, "fp32")


def test_a_budget_that_ends_before_the_loss_is_searched_by_says_that_it_is_still_above(tmp_path: Path):
    script = subject("planted_two_faults.py")
    nan_alone = bisect_training(script, BisectOptions(modules_only=True, judge="nonfinite", runs=tmp_path, jobs=0))
    options = BisectOptions(modules_only=True, max_runs=nan_alone.num_runs, runs=tmp_path, jobs=0)
    answer = bisect_training(script, options)
    assert (answer.found, answer.is_minimal, answer.stopped_by) == (("3",), False, "--max-runs")
    assert answer.num_runs == nan_alone.num_runs
    assert answer.still_above.startswith("loss ")


def test_a_budget_that_was_too_small_can_be_raised(tmp_path: Path):
    script = subject("planted_overflow.py", "0,2,4", "6")
    first = bisect_training(script, BisectOptions(modules_only=True, max_runs=2, runs=tmp_path, jobs=0))
    assert (first.is_minimal, first.stopped_by) == (False, "--max-runs")
    assert {"0", "2", "4"} <= set(first.found)
    assert not (tmp_path / "bisect-1" / "answer.json").exists()
    second = bisect_training(script, BisectOptions(modules_only=True, runs=tmp_path, jobs=0))
    assert (set(second.found), second.folder) == ({"0", "2", "4"}, tmp_path / "bisect-1")
