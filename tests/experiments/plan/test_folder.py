"""The folder of a plan is found again by what was asked."""

from pathlib import Path

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.plan.folder import open_plan_folder

ASKED = {"subject": "train.py", "base": "half"}


def test_a_plan_that_was_interrupted_goes_on_in_its_folder(tmp_path: Path) -> None:
    first = open_plan_folder(ASKED, base=tmp_path, name=None)
    assert first.path == tmp_path / "plan-1"
    assert open_plan_folder(ASKED, base=tmp_path, name=None) == first


def test_another_plan_and_a_finished_one_get_another_folder(tmp_path: Path) -> None:
    first = open_plan_folder(ASKED, base=tmp_path, name=None)
    assert open_plan_folder({**ASKED, "base": "bf16"}, base=tmp_path, name=None).path == tmp_path / "plan-2"
    first.answer.write_text("{}")
    assert open_plan_folder(ASKED, base=tmp_path, name=None).path == tmp_path / "plan-3"


def test_a_name_that_another_plan_has_is_refused(tmp_path: Path) -> None:
    open_plan_folder(ASKED, base=tmp_path, name="mine")
    with pytest.raises(PlanError, match="made with another base"):
        open_plan_folder({**ASKED, "base": "bf16"}, base=tmp_path, name="mine")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").touch()
    with pytest.raises(PlanError, match="is taken"):
        open_plan_folder(ASKED, base=tmp_path, name="mine")


def test_the_same_recipe_is_the_same_file(tmp_path: Path) -> None:
    folder = open_plan_folder(ASKED, base=tmp_path, name=None)
    assert folder.keep_recipe("a") == folder.keep_recipe("a") != folder.keep_recipe("b")
