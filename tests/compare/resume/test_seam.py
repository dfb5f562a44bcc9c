"""Where a resumed run goes on is found by its weights, by its optimizer's count, or as the user says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.compare.resume.seam import find_seam
from roundoff.errors import CompareError
from tests.compare.resume.written_states import MOMENTS, SAVED, STATE, lines, resumed_run, saving_run, weights
from tests.run_folders import write_run


def test_equal_weights_name_the_step_and_its_state_as_the_step_began(tmp_path: Path):
    seam = find_seam(saving_run(tmp_path / "a"), resumed_run(tmp_path / "b"))
    assert seam.step == SAVED
    assert seam.found_by == "by its weights: 3 of 3 are those of that step"
    assert seam.reference is not None
    assert seam.reference.moment == "began"
    assert not seam.is_as_saved


def test_of_several_checkpoints_the_one_with_the_most_weights_counts(tmp_path: Path):
    later = replace(STATE, step=15, groups=(weights("a", "x", "y"),), updates={"Adam": 15})
    run = write_run(tmp_path / "a", STATE, later, lines(20))
    assert find_seam(run, resumed_run(tmp_path / "b", groups=(weights("a", "b", "new"),))).step == SAVED
    assert find_seam(run, resumed_run(tmp_path / "c", groups=(weights("a", "x", "new"),))).step == 15


def test_weights_that_are_frozen_in_all_checkpoints_name_none(tmp_path: Path):
    later = replace(STATE, step=15, groups=(weights("a", "x", "y"),), updates={"Adam": 15})
    run = write_run(tmp_path / "a", STATE, later, lines(20))
    changes = {"groups": (weights("a", "n", "m"), MOMENTS), "updates": {"Adam": 15}}
    seam = find_seam(run, resumed_run(tmp_path / "b", **changes))
    assert (seam.step, seam.found_by) == (15, "by the number of updates in the optimizer's state")


def test_the_count_of_updates_is_the_step_of_a_run_that_began_with_none(tmp_path: Path):
    run = write_run(tmp_path / "a", lines(20))
    assert find_seam(run, resumed_run(tmp_path / "b", updates={"Adam": 12})).step == 12
    with pytest.raises(CompareError, match="saved no checkpoint that was seen"):
        find_seam(run, resumed_run(tmp_path / "c", updates={"Adam": 40}))


def test_the_step_that_the_user_names_comes_first(tmp_path: Path):
    seam = find_seam(saving_run(tmp_path / "a"), resumed_run(tmp_path / "b"), at=4)
    assert (seam.step, seam.reference) == (4, None)


def test_a_run_that_loaded_nothing_was_not_resumed(tmp_path: Path):
    fresh = write_run(tmp_path / "b", lines(5))
    with pytest.raises(CompareError, match="'b' was not resumed: it loaded no checkpoint"):
        find_seam(saving_run(tmp_path / "a"), fresh)
    with pytest.raises(CompareError, match="name the run that was resumed second"):
        find_seam(resumed_run(tmp_path / "c"), fresh)


def test_other_weights_and_other_counts_are_no_resumption(tmp_path: Path):
    other = resumed_run(tmp_path / "b", groups=(weights("x", "y", "z"),), updates={})
    with pytest.raises(CompareError, match="too few are those that were saved at step 10"):
        find_seam(saving_run(tmp_path / "a"), other)
