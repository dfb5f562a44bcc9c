"""Lightning's own Trainer, with and without our callback."""

import importlib
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.errors import UsageError
from roundoff.runs import Run
from roundoff.watch.lightning import WatchCallback
from roundoff.watch.watching import watching

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x + 10)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.root = Root()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Raising(Net):
    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        if index == 2:
            raise ValueError("no such batch")
        return super().training_step(batch, index)


def loader(*, bad_sample: int | None = None) -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(48, 8, generator=generator), torch.randint(0, 4, (48,), generator=generator)
    if bad_sample is not None:
        x[bad_sample, 5] = -1000.0
    return DataLoader(TensorDataset(x, y), 8)


def fit(net: type[Net] = Net, *, callbacks: list[pl.Callback], data: DataLoader, **settings) -> Net:
    torch.manual_seed(0)
    module = net()
    trainer = pl.Trainer(
        max_epochs=1, callbacks=callbacks, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, **settings,
    )  # fmt: skip
    trainer.fit(module, data, loader())
    return module


def weights(module: nn.Module) -> list[Tensor]:
    return [x.detach().clone() for x in module.state_dict().values()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_fit_is_bit_for_bit_what_it_is_without_the_callback(tmp_path: Path, accumulate: int, outcomes, capsys):
    plain = fit(callbacks=[], data=loader(), accumulate_grad_batches=accumulate)
    callback = WatchCallback(tmp_path / "run")
    watched = fit(callbacks=[callback], data=loader(), accumulate_grad_batches=accumulate)
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(watched), strict=True))
    assert [(outcome.step, outcome.first_difference, outcome.error) for outcome in outcomes] == [
        (0, None, None),
        (1, None, None),
    ]
    num_steps = 6 // accumulate
    assert f"Nothing found; watched {num_steps} steps in " in capsys.readouterr().err
    assert (callback.findings, callback.watch.num_steps) == ((), num_steps)
    run = Run.open(tmp_path / "run")
    assert (run.info.status, run.steps, len(run.metrics())) == ("finished", [0, 1], num_steps)


def test_names_the_op_that_made_a_planted_nan(tmp_path: Path, capsys):
    callback = WatchCallback(tmp_path / "run")
    fit(callbacks=[callback], data=loader(bad_sample=8 * 3 + 2))
    verdict = callback.findings[0]
    assert (verdict.rule, verdict.step, verdict.site, verdict.op) == ("domain-error", 3, "root", "aten.sqrt#0")
    assert "test_lightning.py:" in verdict.source
    assert Run.open(tmp_path / "run").replay(3).replay_info().is_identical
    text = capsys.readouterr().err
    assert "domain-error   root / aten.sqrt#0   step 3, forward" in text
    assert f"roundoff replay {tmp_path / 'run'}" in text


def test_stop_ends_the_training(tmp_path: Path):
    callback = WatchCallback(tmp_path / "run", on_anomaly="stop")
    with pytest.raises(SystemExit) as leaving:
        fit(callbacks=[callback], data=loader(bad_sample=8 * 3 + 2))
    assert (leaving.value.code, callback.watch.num_steps, callback.findings[0].step) == (1, 4, 3)


def test_an_exception_in_the_training_is_noted_and_ends_the_watch(tmp_path: Path):
    callback = WatchCallback(tmp_path / "run")
    with pytest.raises(ValueError, match="no such batch"):
        fit(Raising, callbacks=[callback], data=loader())
    run = Run.open(tmp_path / "run")
    assert run.info.status == "failed"
    assert [(anomaly.kind, anomaly.name) for _, anomaly in run.anomalies()] == [("exception", "ValueError")]


def test_a_training_that_is_watched_already_is_not_watched_twice(tmp_path: Path, capsys):
    callback = WatchCallback(tmp_path / "callback")
    with watching(to=tmp_path / "block") as watch:
        fit(callbacks=[callback], data=loader())
    assert "this training is already being watched" in capsys.readouterr().err
    assert (callback.watch, watch.num_steps) == (None, 6)
    assert not (tmp_path / "callback").exists()


def test_without_lightning_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", None)
    monkeypatch.delitem(sys.modules, "roundoff.watch.lightning")
    with pytest.raises(UsageError, match=r"Lightning, which is not installed") as caught:
        importlib.import_module("roundoff.watch.lightning")
    assert "fix: pip install 'roundoff[lightning]'" in str(caught.value)
