"""The Trainer of Hugging Face itself, with and without our callback."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from roundoff.errors import UsageError
from roundoff.runs import Run
from roundoff.watch.huggingface import WatchCallback

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def gpt() -> GPT2LMHeadModel:
    settings = GPT2Config(  # type: ignore[call-arg]
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM",
    )  # fmt: skip
    return GPT2LMHeadModel(settings)


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x + 10)


class Classifier(nn.Module):
    """A model as the Trainer takes any: it gets its batch by name and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Root()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(self.root(x))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Sentences(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            tokens = torch.randint(0, 64, (16,), generator=generator)
            yield {"input_ids": tokens, "labels": tokens}


class Points(IterableDataset):
    def __init__(self, *, bad_sample: int | None) -> None:
        self.bad_sample = bad_sample

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for number in range(1000):
            x = torch.randn(8, generator=generator)
            x[5] = -1000.0 if number == self.bad_sample else x[5]
            yield {"x": x, "labels": torch.tensor(number % 4)}


class RaisesAtStep3(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step == 3:
            raise ValueError("no more")


def train(model: nn.Module, data: IterableDataset, folder: Path, callbacks: list[TrainerCallback], **settings) -> None:
    torch.manual_seed(1)
    arguments = TrainingArguments(
        str(folder / "out"), max_steps=6, per_device_train_batch_size=4, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, logging_steps=2, **settings,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks).train()


def made(build: type[nn.Module] | object) -> nn.Module:
    torch.manual_seed(0)
    return build()


@pytest.mark.parametrize("settings", [{"gradient_accumulation_steps": 2}, {"bf16": True}], ids=str)
def test_a_training_is_bit_for_bit_what_it_is_without_the_callback(tmp_path: Path, settings, outcomes, capsys):
    plain, watched = made(gpt), made(gpt)
    callback = WatchCallback(tmp_path / "run")
    train(plain, Sentences(), tmp_path, [], **settings)
    train(watched, Sentences(), tmp_path, [callback], **settings)
    pairs = zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert [(outcome.step, outcome.first_difference, outcome.error) for outcome in outcomes] == [
        (0, None, None),
        (1, None, None),
    ]
    assert "Nothing found; watched 6 steps in " in capsys.readouterr().err
    assert (callback.findings, callback.watch.num_steps) == ((), 6)
    assert Run.open(tmp_path / "run").info.status == "finished"


def test_names_the_op_that_made_a_planted_nan(tmp_path: Path, capsys):
    callback = WatchCallback(tmp_path / "run")
    train(made(Classifier), Points(bad_sample=4 * 3 + 2), tmp_path, [callback])
    verdict = callback.findings[0]
    assert (verdict.rule, verdict.step, verdict.site, verdict.op) == ("domain-error", 3, "root", "aten.sqrt#0")
    assert "test_huggingface.py:" in verdict.source
    assert Run.open(tmp_path / "run").replay(3).replay_info().is_identical
    assert "domain-error   root / aten.sqrt#0   step 3, forward" in capsys.readouterr().err


def test_close_gives_the_verdict_on_a_training_that_raised(tmp_path: Path, capsys):
    callback = WatchCallback(tmp_path / "run")
    with pytest.raises(ValueError, match="no more") as caught:
        train(made(Classifier), Points(bad_sample=None), tmp_path, [callback, RaisesAtStep3()])
    assert callback.findings == ()
    callback.close(caught.value)
    run = Run.open(tmp_path / "run")
    assert (run.info.status, callback.watch.num_steps) == ("failed", 3)
    assert [(anomaly.kind, anomaly.name) for _, anomaly in run.anomalies()] == [("exception", "ValueError")]
    assert "no more" in capsys.readouterr().err


def test_the_next_training_begins_a_run_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/learn.py"])
    callback = WatchCallback()
    for _ in range(2):
        train(made(Classifier), Points(bad_sample=None), tmp_path, [callback])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["learn-1", "learn-2"]
    assert callback.watch.folder == tmp_path / "runs" / "learn-2"


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "roundoff.watch.huggingface")
    with pytest.raises(UsageError, match=r"Hugging Face transformers, which is not installed") as caught:
        importlib.import_module("roundoff.watch.huggingface")
    assert "fix: pip install 'roundoff[hf]'" in str(caught.value)
