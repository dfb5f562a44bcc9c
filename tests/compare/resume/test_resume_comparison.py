"""What a resumed run has lost, part by part, from run folders written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundoff.compare.resume.compared_part import ComparedPart, Restoration, ResumePart
from roundoff.compare.resume.resume_comparison import ResumeComparison, compare_resumption
from roundoff.errors import CompareError
from roundoff.runs import ModuleFacts, Structure
from tests.compare.resume.written_states import MOMENTS, STATE, lines, resumed_run, saving_run, weights
from tests.run_folders import write_run

DROPOUT = Structure(step=0, modules=(ModuleFacts(site="d", kind="Dropout", training=True, settings={"p": 0.1}),))


def compare(folder: Path, *records: Any, **changes: Any) -> ResumeComparison:
    return compare_resumption(saving_run(folder / "a"), resumed_run(folder / "b", *records, **changes))


def part(comparison: ResumeComparison, kind: ResumePart) -> ComparedPart:
    return next(each for each in comparison.parts if each.part is kind)


def test_a_complete_resumption_has_lost_nothing(tmp_path: Path):
    comparison = compare(tmp_path)
    assert comparison.lost == []
    assert comparison.drift is not None
    assert (comparison.drift.num_steps, comparison.drift.is_identical) == (10, True)


def test_moments_that_are_zero_are_named_with_the_norm_that_they_had(tmp_path: Path):
    zero = weights("0", "0", "0", kind="optimizer", name="Adam.exp_avg")
    zero = replace(zero, num_zero=3, l2=0.0)
    comparison = compare(tmp_path, groups=(weights("a", "b", "c"), zero))
    assert [each.text for each in comparison.lost] == [
        "the optimizer's state was not restored: Adam's exp_avg is zero where the run had a norm of 1 after 10 updates"
    ]


def test_an_average_that_was_saved_in_place_of_the_weights_is_named(tmp_path: Path):
    average = replace(STATE, groups=(weights("p", "q", "r"), MOMENTS))
    run = write_run(tmp_path / "a", average, replace(STATE, moment="began"), lines(20))
    (lost,) = compare_resumption(run, resumed_run(tmp_path / "b", groups=average.groups)).lost
    assert lost.text == "the checkpoint holds other weights than the run went on with: 3 of 3 differ"


def test_another_optimizer_and_another_count_are_named(tmp_path: Path):
    comparison = compare(tmp_path, updates={"Adam": 1})
    assert comparison.lost[0].text.endswith("Adam has counted 1 update where the run had 10")
    run = saving_run(tmp_path / "c")
    other = resumed_run(tmp_path / "d", rates={"SGD": [0.1]}, updates={}, groups=(weights("a", "b", "c"),))
    lost = compare_resumption(run, other).lost
    assert lost[0].text.endswith("the run trains with Adam, the resumed run with SGD")


def test_losses_that_differ_although_all_is_restored_are_a_finding_of_their_own(tmp_path: Path):
    comparison = compare(tmp_path, lines(10, first=9))
    assert [each.part for each in comparison.lost] == [ResumePart.LOSSES]
    assert "0.2 against 0.181818 at step 10" in comparison.lost[0].text


def test_losses_that_differ_by_rounding_agree(tmp_path: Path):
    metrics = lines(10, first=10)
    shaken = [type(line)(step=line.step, loss=(line.loss or 0) * (1 + 1e-7), lr=line.lr) for line in metrics]
    comparison = compare(tmp_path, shaken)
    assert comparison.lost == []
    assert comparison.drift is not None
    assert comparison.drift.largest_relative == pytest.approx(1e-7, rel=1e-3)


def test_generators_count_only_where_a_loss_depends_on_them(tmp_path: Path):
    others = {"torch": "2", "numpy": "2", "python": "1"}
    unused = part(compare(tmp_path / "1", generators=others), ResumePart.GENERATORS)
    assert unused.answer is Restoration.UNUSED
    assert unused.text == "the state of torch and numpy is another, and no loss depends on it"
    lost = compare(tmp_path / "2", lines(10, first=9), generators=others).lost
    assert [each.text for each in lost] == ["the generators were not restored: the state of torch is another"]
    only_numpy = {"torch": "1", "numpy": "2", "python": "1"}
    changes = {"generators": only_numpy, "groups": (weights("a", "b", "new"), MOMENTS)}
    comparison = compare(tmp_path / "3", lines(10, first=9), DROPOUT, **changes)
    assert [each.part for each in comparison.lost] == [ResumePart.WEIGHTS]
    assert part(comparison, ResumePart.GENERATORS).answer is Restoration.UNKNOWN


def test_of_a_run_that_stopped_when_it_had_saved_the_next_rate_may_follow(tmp_path: Path):
    falling = lines(10, lr=lambda step: 0.1 - 0.001 * step)
    run = write_run(tmp_path / "a", list(saving_run(tmp_path / "x", is_stopped=True).states()), falling)
    goes_on = resumed_run(tmp_path / "b", lines(10, first=10, lr=lambda step: 0.1 - 0.001 * step))
    assert compare_resumption(run, goes_on).lost == []
    again = resumed_run(tmp_path / "c", lines(10, lr=lambda step: 0.1 - 0.001 * step))
    lost = compare_resumption(run, again).lost
    assert [each.text for each in lost] == [
        "the learning rate starts again as at step 0: 0.1, after 0.091 in the step before"
    ]


def test_the_loss_scale_is_compared_by_the_losses_where_no_scaler_tells_it(tmp_path: Path):
    run = write_run(tmp_path / "a", list(saving_run(tmp_path / "x").states()), lines(20, loss_scale=1024.0))
    again = resumed_run(tmp_path / "b", lines(10, first=10, loss_scale=65536.0))
    lost = compare_resumption(run, again).lost
    assert [each.text for each in lost] == ["the loss scale is 65536 again; the run had 1024"]


def test_a_kept_copy_of_a_checkpoint_does_not_matter_and_an_average_does(tmp_path: Path):
    best = weights("a", "b", "c", kind="copy", name="Best")
    average = weights("p", "q", "r", kind="copy", name="Average")
    groups = (weights("a", "b", "c"), MOMENTS)
    now = {"groups": (*groups, weights("n", "n", "n", kind="copy", name="Best"))}
    run = saving_run(tmp_path / "a", groups=(*groups, best))
    assert compare_resumption(run, resumed_run(tmp_path / "b", **now)).lost == []
    run = saving_run(tmp_path / "c", groups=(*groups, average))
    now = {"groups": (*groups, weights("a", "b", "c", kind="copy", name="Average"))}
    (lost,) = compare_resumption(run, resumed_run(tmp_path / "d", **now)).lost
    assert lost.text.endswith("Average, which is a copy of the loaded weights now")


def test_a_run_is_not_its_own_resumption_and_needs_a_step(tmp_path: Path):
    run = saving_run(tmp_path / "a")
    with pytest.raises(CompareError, match="its own resumption"):
        compare_resumption(run, run)
    empty = resumed_run(tmp_path / "b", Structure(step=0))
    with pytest.raises(CompareError, match="'b' has no step"):
        compare_resumption(run, empty)
