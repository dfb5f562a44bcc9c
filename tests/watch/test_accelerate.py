"""Accelerate itself, with and without our tracker."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.errors import UsageError
from roundoff.runs import Run
from roundoff.watch.accelerate import WatchTracker

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps its settings for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(tracker: WatchTracker | None, *, bad_sample: int | None = None, **settings) -> list[Tensor]:
    accelerator = Accelerator(log_with=tracker, cpu=True, **settings)
    if tracker is not None:
        accelerator.init_trackers("tiny")
    torch.manual_seed(0)
    x, y = torch.rand(48, 8), torch.randint(0, 4, (48,))
    if bad_sample is not None:
        x[bad_sample, 5] = -1.0
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, batches, schedule = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(x, y), 8), schedule
    )
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x.sqrt()), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item()})
    accelerator.end_training()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("settings", "num_steps"),
    [({}, 6), ({"gradient_accumulation_steps": 2}, 3), ({"mixed_precision": "bf16"}, 6)],
    ids=str,
)
def test_a_training_is_bit_for_bit_what_it_is_without_the_tracker(
    tmp_path: Path, settings, num_steps: int, outcomes, capsys
):
    tracker = WatchTracker(tmp_path / "run")
    plain, watched = train(None, **settings), train(tracker, **settings)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert [(outcome.step, outcome.first_difference, outcome.error) for outcome in outcomes] == [
        (0, None, None),
        (1, None, None),
    ]
    assert f"Nothing found; watched {num_steps} steps in " in capsys.readouterr().err
    assert (tracker.findings, tracker.tracker.num_steps) == ((), num_steps)
    assert len(Run.open(tmp_path / "run").metrics()) == num_steps


def test_a_bad_sample_is_distinguished_from_the_step_it_came_with(tmp_path: Path, capsys):
    tracker = WatchTracker(tmp_path / "run")
    train(tracker, bad_sample=8 * 3 + 2)
    assert tracker.findings[0].step == 3
    assert Run.open(tmp_path / "run").replay(3).replay_info().is_identical
    assert "step 3" in capsys.readouterr().err


def test_the_watch_is_the_tracker_that_accelerate_hands_out(tmp_path: Path):
    tracker = WatchTracker(tmp_path / "run")
    accelerator = Accelerator(log_with=tracker, cpu=True)
    accelerator.init_trackers("tiny")
    assert accelerator.get_tracker("roundoff", unwrap=True) is tracker.watch
    accelerator.end_training()
    assert Run.open(tmp_path / "run").info.status == "finished"


def test_a_script_that_raises_gets_its_verdict_when_python_ends(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from accelerate import Accelerator\n"
        "from roundoff.watch.accelerate import WatchTracker\n"
        "accelerator = Accelerator(log_with=WatchTracker(), cpu=True)\n"
        "accelerator.init_trackers('tiny')\n"
        "model, x = torch.nn.Linear(4, 1), torch.ones(2, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "accelerator.backward(model(x).sum())\n"
        "optimizer.step()\n"
        "raise ValueError('no more')\n"
    )
    answer = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    run = Run.open(tmp_path / "runs" / "train-1")
    assert (answer.returncode, run.info.status) == (1, "failed")
    assert [(anomaly.kind, anomaly.name) for _, anomaly in run.anomalies()] == [("exception", "ValueError")]
    assert "watched 1 step in " in answer.stderr


def test_an_accelerate_that_never_starts_a_tracker_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("accelerate.tracking.GeneralTracker.start")
    monkeypatch.delitem(sys.modules, "roundoff.watch.accelerate")
    with pytest.raises(UsageError, match=r"Accelerate 1\.8 or newer") as caught:
        importlib.import_module("roundoff.watch.accelerate")
    assert "pip install 'accelerate>=1.8'" in str(caught.value)


def test_without_accelerate_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "accelerate.tracking", None)
    monkeypatch.delitem(sys.modules, "roundoff.watch.accelerate")
    with pytest.raises(UsageError, match=r"Hugging Face Accelerate, which is not installed") as caught:
        importlib.import_module("roundoff.watch.accelerate")
    assert "fix: pip install 'roundoff[hf]'" in str(caught.value)
