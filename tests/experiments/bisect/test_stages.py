"""`--auto`: what each stage shows decides what is looked at next. Most scripts here answer by their exit status."""

from pathlib import Path

import pytest

from roundoff.errors import BisectError
from roundoff.experiments.bisect.bisect_answer import BisectAnswer, bisect_text
from roundoff.experiments.bisect.bisect_options import BisectEvent, BisectOptions
from roundoff.experiments.bisect.bisection import bisect_training
from roundoff.experiments.trials.targets import ScriptTarget
from roundoff.record.script import Script, run_script
from roundoff.watch.watching import watching

HERE = Path(__file__).parent

DRAWS_BY_FORMAT = """
import sys, torch
torch.manual_seed(0)
wide = torch.rand(8, dtype=torch.float64).float()
torch.manual_seed(0)
sys.exit(not torch.allclose(wide, torch.rand(8), atol=1e-2))
"""
SCALE_MUST_STAY = """
import sys, torch, roundoff
model = torch.nn.Linear(4, 1)
model, optimizer = roundoff.apply_recipe(model, torch.optim.SGD(model.parameters(), lr=1e-9), "O2")
before = optimizer.scale
for _ in range(3):
    optimizer.backward(1e4 * model(torch.ones(2, 4)).square().sum())
    optimizer.step()
    optimizer.zero_grad()
sys.exit(optimizer.scale != before)
"""
ALWAYS_BAD = """
import sys, torch
model = torch.nn.Linear(4, 1)
model(torch.ones(2, 4)).sum().backward()
sys.exit(5)
"""
NARROW_BY_DEFAULT = """
import sys, torch
torch.set_default_dtype(torch.bfloat16)
model = torch.nn.Linear(4, 1)
model(torch.ones(2, 4)).sum().backward()
is_narrow = torch.get_default_dtype() is torch.bfloat16
torch.set_default_dtype(torch.float32)
sys.exit(is_narrow)
"""
LEARNS = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
for _ in range(10):
    x = torch.randn(16, 4)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def walked(tmp_path: Path, text: str, *args: str, **options: object) -> BisectAnswer:
    (tmp_path / "train.py").write_text(text)
    subject = ScriptTarget(script=Script(target="train.py", args=args), working_folder=tmp_path)
    chosen = BisectOptions(auto=True, runs=tmp_path / "runs", jobs=0, **options)
    events: list[BisectEvent] = []
    answer = bisect_training(subject, chosen, on_event=events.append)
    assert [event.what for event in events if event.what in answer.stages] == [*answer.stages], "reported at once"
    return answer


def test_random_numbers_that_depend_on_the_format_are_the_answer(tmp_path: Path):
    answer = walked(tmp_path, DRAWS_BY_FORMAT)
    assert answer.found == ("randomness",)
    assert bisect_text(answer).startswith("Fixed random numbers make the training good: `randomness` makes")
    assert [stage.partition(":")[0] for stage in answer.stages] == [
        "configuration and data",
        "widest formats",
        "fixed random numbers",
    ]


def test_a_scale_that_moves_is_the_answer(tmp_path: Path):
    answer = walked(tmp_path, SCALE_MUST_STAY)
    assert answer.found == ("adaptive",)
    assert answer.stages[2] == "fixed random numbers: still bad (exit 1), that is not the cause"
    assert answer.stages[3] == "frozen scales: good (exit 0), that is the cause"


def test_a_format_is_searched_for_when_the_widest_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = Script(target=str(HERE / "planted_overflow.py"), args=("1", "4"))
    with monkeypatch.context() as wide, watching(to=tmp_path / "good"):
        wide.setenv("ROUNDOFF_RECIPE", "fp32")
        run_script(script)
    options = BisectOptions(auto=True, modules_only=True, against=tmp_path / "good", runs=tmp_path, jobs=0)
    answer = bisect_training(ScriptTarget(script=script), options)
    assert answer.found == ("1",)
    assert answer.stages[0] == f"configuration and data: the same as those of {tmp_path / 'good'}"
    assert answer.stages[1].startswith("widest formats: good (finite, loss ")
    assert answer.stages[-1] == "next: search formats, site by site"


@pytest.mark.slow
def test_an_op_is_searched_for_when_no_format_helps(tmp_path: Path):
    subject = ScriptTarget(script=Script(target=str(HERE / "planted_wrong_op.py")))
    answer = bisect_training(subject, BisectOptions(auto=True, seeds=1, runs=tmp_path))
    assert answer.found == ("1:backward:planted.squash_backward",)


def test_trainings_with_different_settings_are_aligned_first(tmp_path: Path):
    (tmp_path / "good.py").write_text(LEARNS)
    with watching(to=tmp_path / "good"):
        run_script(Script(target=str(tmp_path / "good.py"), args=("0.1",)))
    answer = walked(tmp_path, LEARNS, "0.00001", against=tmp_path / "good")
    assert answer.found[0] == "lr of SGD"
    assert bisect_text(answer).startswith("The two trainings have different settings; make them equal first")
    assert "lr of SGD: 0.1 against 1e-05" in answer.stages[0]


def test_a_training_that_is_as_good_as_its_reference_needs_nothing(tmp_path: Path):
    (tmp_path / "good.py").write_text(LEARNS)
    with watching(to=tmp_path / "good"):
        run_script(Script(target=str(tmp_path / "good.py"), args=("0.1",)))
    assert walked(tmp_path, LEARNS, "0.1", against=tmp_path / "good").found == ()


def test_where_nothing_helps_it_says_what_was_tried(tmp_path: Path):
    with pytest.raises(BisectError, match=r"No check makes `train.py` good[\s\S]*every op in fp64: still"):
        walked(tmp_path, ALWAYS_BAD)


def test_what_wider_formats_cure_is_not_called_incurable_where_it_cannot_be_searched(tmp_path: Path):
    with pytest.raises(BisectError, match=r"Wider formats make `train.py` good[\s\S]*apply_recipe"):
        walked(tmp_path, NARROW_BY_DEFAULT)
