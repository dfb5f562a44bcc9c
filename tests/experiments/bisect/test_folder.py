from pathlib import Path

import pytest

from roundoff.errors import BisectError, UsageError
from roundoff.experiments.bisect.folder import open_bisect_folder

PLAN = {"subject": "train.py", "fingerprint": "abc", "good": "fp32", "bad": None}


def test_the_same_search_goes_on_in_its_folder_until_there_is_an_answer(tmp_path: Path):
    first = open_bisect_folder(PLAN, base=tmp_path, name=None)
    assert first.path == tmp_path / "bisect-1"
    assert open_bisect_folder(PLAN, base=tmp_path, name=None) == first
    first.answer.write_text("{}")
    assert open_bisect_folder(PLAN, base=tmp_path, name=None).path == tmp_path / "bisect-2"


def test_another_training_gets_another_folder(tmp_path: Path):
    open_bisect_folder(PLAN, base=tmp_path, name=None)
    other = {**PLAN, "fingerprint": "other"}
    assert open_bisect_folder(other, base=tmp_path, name=None).path == tmp_path / "bisect-2"
    assert open_bisect_folder(PLAN, base=tmp_path, name=None).path == tmp_path / "bisect-1"


def test_a_named_folder_of_another_training_is_refused(tmp_path: Path):
    open_bisect_folder(PLAN, base=tmp_path, name="mine")
    assert open_bisect_folder(PLAN, base=tmp_path, name="mine").path == tmp_path / "mine"
    with pytest.raises(BisectError, match=r"holds another bisection[\s\S]*`train.py`, from before the .* --good\."):
        open_bisect_folder({**PLAN, "fingerprint": "other", "good": "bf16"}, base=tmp_path, name="mine")


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(BisectError, match="is taken"):
        open_bisect_folder(PLAN, base=tmp_path, name="mine")


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "/x", ""])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match=f"--name '{name}' is not a name"):
        open_bisect_folder(PLAN, base=tmp_path / "runs", name=name)
    assert not any(tmp_path.iterdir())
