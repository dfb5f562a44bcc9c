from pathlib import Path

import pytest

from roundoff.errors import BisectError, SweepError, UsageError
from roundoff.experiments.bisect.bisection import BisectFolder
from roundoff.experiments.experiment_folder import ExperimentFolder, check_name, newest_first
from roundoff.experiments.plan.plan_session import PlanFolder
from roundoff.experiments.sweep.sweep_folder import SweepFolder

REQUEST = {"subject": "train.py", "fingerprint": "abc", "good": "fp32", "base": "half"}


@pytest.fixture(params=[BisectFolder, PlanFolder])
def kind(request: pytest.FixtureRequest) -> type[ExperimentFolder]:
    found: type[ExperimentFolder] = request.param
    return found


def test_the_same_request_resumes_in_its_folder_until_there_is_an_answer(kind: type[ExperimentFolder], tmp_path: Path):
    first = kind.open(REQUEST, base=tmp_path, name=None)
    assert first.path == tmp_path / f"{kind.kind}-1"
    assert kind.open(REQUEST, base=tmp_path, name=None) == first
    first.answer.write_text("{}")
    assert kind.open(REQUEST, base=tmp_path, name=None).path == tmp_path / f"{kind.kind}-2"


def test_another_request_gets_another_folder(kind: type[ExperimentFolder], tmp_path: Path):
    kind.open(REQUEST, base=tmp_path, name=None)
    for key in ("fingerprint", "base"):
        kind.open({**REQUEST, key: "other"}, base=tmp_path, name=None)
    assert [path.name for path in newest_first(tmp_path, kind.kind)] == [f"{kind.kind}-{n}" for n in (3, 2, 1)]
    assert kind.open(REQUEST, base=tmp_path, name=None).path == tmp_path / f"{kind.kind}-1"


def test_a_named_folder_of_another_request_is_refused(kind: type[ExperimentFolder], tmp_path: Path):
    kind.open(REQUEST, base=tmp_path, name="mine")
    assert kind.open(REQUEST, base=tmp_path, name="mine").path == tmp_path / "mine"
    with pytest.raises(kind.error) as raised:
        kind.open({**REQUEST, "base": "bf16"}, base=tmp_path, name="mine")
    assert str(raised.value) == (
        f"'{tmp_path / 'mine'}' holds another {kind.noun}.\n"
        "  why: it was made for `train.py`, with another base.\n"
        "  fix: --name NEW starts in another folder."
    )


def test_a_bisection_names_the_options_that_differ(tmp_path: Path):
    BisectFolder.open(REQUEST, base=tmp_path, name="mine")
    with pytest.raises(BisectError, match=r"for `train.py`, before the script or its settings changed, .* --good\."):
        BisectFolder.open({**REQUEST, "fingerprint": "other", "good": "bf16"}, base=tmp_path, name="mine")


def test_a_folder_of_something_else_is_refused(kind: type[ExperimentFolder], tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(kind.error, match="is already in use"):
        kind.open(REQUEST, base=tmp_path, name="mine")


def test_a_folder_that_holds_no_experiment_has_no_request(tmp_path: Path):
    with pytest.raises(SweepError, match=r"holds no sweep\.\n  why: there is no sweep\.json in it\."):
        SweepFolder(path=tmp_path).read_request()


def test_the_same_recipe_is_the_same_file(tmp_path: Path):
    folder = PlanFolder.open(REQUEST, base=tmp_path, name=None)
    assert folder.write_trial_recipe("a") == folder.write_trial_recipe("a") != folder.write_trial_recipe("b")


def test_the_tenth_is_newer_than_the_ninth_and_what_has_no_number_is_last(tmp_path: Path):
    for name in ("plan-9", "plan-10", "plan-old", "bisect-11"):
        (tmp_path / name).mkdir()
    assert [path.name for path in newest_first(tmp_path, "plan")] == ["plan-10", "plan-9", "plan-old"]


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "/x", ""])
def test_a_name_that_leads_elsewhere_is_refused(kind: type[ExperimentFolder], tmp_path: Path, name: str):
    with pytest.raises(UsageError, match=f"Invalid --name '{name}'"):
        kind.open(REQUEST, base=tmp_path / "runs", name=name)
    assert not any(tmp_path.iterdir())


def test_a_plain_name_or_none_is_valid():
    check_name("mine")
    check_name(None)
