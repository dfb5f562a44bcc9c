"""Callbacks of libraries on an accelerator that torch knows and they do not, as far as they take it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from roundoff.runs import Run

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


class Points(Dataset[dict[str, Tensor]]):
    """Samples as the Trainer of Hugging Face takes them; one is spoiled if wanted."""

    def __init__(self, bad_sample: int | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.rand(48, 8, generator=generator), torch.randint(0, 4, (48,), generator=generator)
        if bad_sample is not None:
            self.x[bad_sample, 5] = -1.0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.body(x.sqrt()), labels)}


@pytest.fixture
def fresh_accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let accelerate use the device; it keeps its settings for the whole process."""
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "sim")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def weights(model: nn.Module) -> list[Tensor]:
    assert {p.device for p in model.parameters()} == {torch.device("sim:0")}
    return [p.detach().cpu() for p in model.parameters()]


def assert_untouched(bare: list[Tensor], watched: list[Tensor], folder: Path) -> None:
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    run = Run.open(folder)
    assert (run.info.status, list(run.failures()), run.info.notes) == ("finished", [], ())
    assert run.steps == [0, 1]
    assert [line.loss is not None for line in run.metrics()] == [True] * 6


def train_with_accelerate(tracker: Any = None) -> list[Tensor]:
    from accelerate import Accelerator

    accelerator = Accelerator(log_with=tracker)
    if tracker is not None:
        accelerator.init_trackers("tiny")
    torch.manual_seed(0)
    model: Any = Classifier()
    data = Points()
    loader = DataLoader(TensorDataset(data.x, data.y), 8)
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), loader)
    for x, y in batches:
        accelerator.backward(model(x, y)["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    return weights(model)


@pytest.mark.usefixtures("fresh_accelerate")
def test_accelerate(tmp_path: Path) -> None:
    from roundoff.watch.accelerate import WatchTracker

    bare = train_with_accelerate()
    assert_untouched(bare, train_with_accelerate(WatchTracker(tmp_path / "run")), tmp_path / "run")


@pytest.mark.usefixtures("fresh_accelerate")
def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from roundoff.watch.huggingface import WatchCallback

    def train(*callbacks: Any, bad_sample: int | None = None) -> list[Tensor]:
        torch.manual_seed(0)
        model = Classifier()
        arguments = TrainingArguments(
            str(tmp_path / "out"), max_steps=6, per_device_train_batch_size=8, report_to=[], save_strategy="no",
            disable_tqdm=True, logging_steps=2, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=Points(bad_sample), callbacks=[*callbacks]).train()
        return weights(model)

    bare = train()
    assert_untouched(bare, train(WatchCallback(tmp_path / "run")), tmp_path / "run")
    spoiled = WatchCallback(tmp_path / "spoiled")
    train(spoiled, bad_sample=3)
    assert (spoiled.findings[0].rule, spoiled.findings[0].op) == ("domain-error", "aten.sqrt#0")


def test_the_trainer_of_lightning(tmp_path: Path) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.accelerators import Accelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy

    from roundoff.watch.lightning import WatchCallback

    class Simulated(Accelerator):  # what its users write for a device that it does not know
        def setup_device(self, device: torch.device) -> None: ...
        def teardown(self) -> None: ...
        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return {}

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            return devices

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [torch.device("sim", index) for index in range(devices)]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "sim"

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return self.model(batch["x"], batch["labels"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    def fit(*callbacks: Any) -> list[Tensor]:
        torch.manual_seed(0)
        module = Net()
        strategy = SingleDeviceStrategy(device=torch.device("sim:0"), accelerator=Simulated())
        trainer = pl.Trainer(
            max_epochs=1, callbacks=[*callbacks], strategy=strategy, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
        )  # fmt: skip
        found: list[list[Tensor]] = []
        module.on_train_end = lambda: found.append(weights(module))
        trainer.fit(module, DataLoader(Points(), 8))
        return found[0]

    bare = fit()
    assert_untouched(bare, fit(WatchCallback(tmp_path / "run")), tmp_path / "run")
