from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.errors import ReplayError
from roundoff.replay.saved.builder import Builder

FILE = """
import torch
from torch import nn
from neighbour import WIDTH

calls = []

def model():
    calls.append(1)
    return nn.Linear(WIDTH, 2)

def both():
    made = model()
    return made, torch.optim.SGD(made.parameters(), 0.1)

def all_three():
    return (*both(), lambda model, x: model(x).sum())

def several():
    first, second = model(), model()
    return [first, second], [torch.optim.SGD(m.parameters(), 0.1) for m in (first, second)]

def without_optimizer():
    return model(), None, lambda model, x: model(x).sum()

def raising():
    raise ValueError("no weights here")

def nothing(): pass
def words(): return "a model"
def wrong_optimizer(): return model(), "sgd"
def wrong_loss(): return (*both(), 3)
def too_much(): return (*all_three(), 4)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 3\n")
    (tmp_path / "made.py").write_text(FILE)
    return tmp_path / "made.py"


@pytest.mark.parametrize(
    ("name", "num_models", "num_optimizers", "has_loss"),
    [
        ("model", 1, 0, False),
        ("both", 1, 1, False),
        ("all_three", 1, 1, True),
        ("several", 2, 2, False),
        ("without_optimizer", 1, 0, True),
    ],
)
def test_takes_every_form_of_the_contract(file: Path, name: str, num_models: int, num_optimizers: int, has_loss: bool):
    built = Builder(f"{file}:{name}")()
    assert [type(model) for model in built.models] == [nn.Linear] * num_models
    assert [type(optimizer) for optimizer in built.optimizers] == [torch.optim.SGD] * num_optimizers
    assert (built.loss is not None) == has_loss


def test_each_call_builds_anew_from_one_import(file: Path):
    build = Builder(f"{file}:model")
    assert build().models[0] is not build().models[0]


@pytest.mark.parametrize("name", ["nothing", "words", "wrong_optimizer", "wrong_loss", "too_much"])
def test_something_else_than_a_model_is_refused(file: Path, name: str):
    with pytest.raises(ReplayError, match="does not return a model") as caught:
        Builder(f"{file}:{name}")()
    assert "return model, or (model, optimizer)" in str(caught.value)


def test_an_exception_of_the_builder_is_reported_with_its_line(file: Path):
    with pytest.raises(ReplayError, match="raised ValueError") as caught:
        Builder(f"{file}:raising")()
    assert "no weights here (line 27)" in str(caught.value)


def test_a_file_that_cannot_be_imported_is_reported_with_its_line(tmp_path: Path):
    (tmp_path / "broken.py").write_text("x = 1\nimport no_such_library\n")
    with pytest.raises(ReplayError, match="could not be imported: ModuleNotFoundError") as caught:
        Builder(f"{tmp_path / 'broken.py'}:build")()
    assert "(line 2)" in str(caught.value)


def test_a_function_that_is_not_there_lists_those_that_are(file: Path):
    with pytest.raises(ReplayError, match="has no function 'build'") as caught:
        Builder(f"{file}:build")()
    assert "it has model, both, all_three" in str(caught.value)


@pytest.mark.parametrize("text", ["made.py", "made.py:", ":build", "made.py:build()", "nowhere.py:build"])
def test_a_text_that_names_no_builder_is_refused(text: str):
    with pytest.raises(ReplayError, match=r"builder") as caught:
        Builder(text)
    assert "for example: --builder model.py:build" in str(caught.value)


def test_a_module_of_the_current_folder_can_hold_the_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)  # also takes away what the builder puts onto the path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo_of_a_test").mkdir()
    (tmp_path / "zoo_of_a_test" / "nets.py").write_text("from torch import nn\ndef small(): return nn.Linear(3, 2)\n")
    assert isinstance(Builder("zoo_of_a_test.nets:small")().models[0], nn.Linear)


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ReplayError, match=r"could not be imported: ModuleNotFoundError[^$]*no_such_package"):
        Builder("no_such_package.nets:small")()
