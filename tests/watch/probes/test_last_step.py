"""Probes on the last step: each finds what was planted, and changes nothing."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.replay.snapshots import Snapshots
from roundoff.runs import BatchMixingProbe, Run
from roundoff.runs.files.plain_json import from_json, object_of, to_json
from roundoff.watch.probes import last_step
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import start_watching, watching


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0.4


class Net(nn.Module):
    def __init__(self, fault: str | None) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norm = nn.BatchNorm1d(32)
        self.second = nn.Linear(32, 3)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)).relu()
        if self.fault == "gradient":
            h = WrongGradient.apply(h)
        if self.fault == "scaled":
            h = Reversed.apply(h)
        if self.fault == "mixing":
            h = h.t().reshape(h.shape)
        if self.fault == "dropout":
            h = F.dropout(h, 0.5)
        if self.fault == "unseeded":
            h = h + torch.frombuffer(bytearray(os.urandom(h.numel())), dtype=torch.uint8).view(h.shape) / 255
        return self.second(h)


def probes(folder: Path, fault: str | None = None, *, reduction: str = "mean") -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    model = Net(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watching(to=folder):
        for _ in range(30):
            x = torch.randn(16, 8)
            y = torch.randint(0, 3, (16,)) if fault == "labels" else x[:, :3].argmax(1)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, reduction=reduction).backward()
            optimizer.step()
        before = {name: x.clone() for name, x in model.state_dict().items()}
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    return {probe.probe: from_json(to_json(object_of(probe))) for probe in Run.open(folder).probes()}


def test_a_healthy_step_passes_every_probe(tmp_path: Path):
    found = probes(tmp_path / "a")
    assert found["direction"]["ratio"] == pytest.approx(1, abs=1e-6)
    assert found["batch-mixing"]["changed"] == []
    assert found["eval-mode"]["random_ops"] == []
    assert found["eval-mode"]["eval_loss"] == found["eval-mode"]["eval_again"]
    half = found["half-batch"]
    assert sum(half["halves"]) / 2 == pytest.approx(half["loss"], rel=1e-5)
    assert "overfit" not in found


def test_a_sum_halves_with_the_batch(tmp_path: Path):
    half = probes(tmp_path / "a", reduction="sum")["half-batch"]
    assert sum(half["halves"]) == pytest.approx(half["loss"], rel=1e-5)


def test_a_wrong_gradient_shows_before_its_function_only(tmp_path: Path):
    found = probes(tmp_path / "a", "gradient")["direction"]
    assert found["functions"] == ["WrongGradient"]
    ratios = {entry["parameter"]: entry["ratio"] for entry in found["by_site"]}
    assert ratios["first.weight"] == pytest.approx(2 / 3, abs=1e-4)
    assert ratios["second.weight"] == pytest.approx(1, abs=1e-4)


def test_a_function_that_gives_what_it_is_given_is_there_for_its_gradient(tmp_path: Path):
    original = Reversed.forward
    assert probes(tmp_path / "a", "scaled")["direction"]["functions"] == []
    assert Reversed.forward is original


def test_samples_that_mix_are_found_in_the_code_that_mixes_them(tmp_path: Path):
    found = probes(tmp_path / "a", "mixing")["batch-mixing"]
    assert found["changed"]
    assert found["site"] == "<model>"


def test_outputs_that_change_by_themselves_are_not_taken_for_mixing(tmp_path: Path):
    assert "batch-mixing" not in probes(tmp_path / "a", "unseeded")


def test_random_numbers_in_eval_mode_are_named(tmp_path: Path):
    found = probes(tmp_path / "a", "dropout")["eval-mode"]
    assert found["eval_loss"] != found["eval_again"]
    (op,) = found["random_ops"]
    assert (op["site"], op["op"]) == ("<model>", "aten.bernoulli_")


def test_one_batch_is_learned_where_the_data_is_not(tmp_path: Path):
    losses = probes(tmp_path / "a", "labels")["overfit"]["losses"]
    assert losses[-1] < 0.5 * losses[0]


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left(x) @ self.right(y).T


class OwnLoss(Clip):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = super().forward(x, y)
        return scores.logsumexp(1) - scores.diagonal()


class Neighbours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, relation: Tensor) -> Tensor:
        if relation.dtype is torch.int64:
            return self.layer(x).index_add(0, relation[1], self.layer(x)[relation[0]])
        return relation @ self.layer(x)


EDGES = torch.stack([torch.arange(16), (torch.arange(16) + 1) % 16])


@pytest.mark.parametrize(
    ("model", "other", "loss"),
    [
        (Clip(), lambda: torch.randn(16, 5), lambda scores: F.cross_entropy(scores, torch.arange(16))),
        (OwnLoss(), lambda: torch.randn(16, 5), lambda losses: losses.mean()),
        (Neighbours(), lambda: torch.rand(16, 16), lambda scores: F.cross_entropy(scores, torch.arange(16) % 3)),
        (Neighbours(), lambda: EDGES, lambda scores: F.cross_entropy(scores, torch.arange(16) % 3)),
    ],
    ids=["samples against each other", "a loss of its own", "neighbours", "edges"],
)
def test_samples_that_are_meant_to_meet_are_not_taken_for_mixed(model: Any, other: Any, loss: Any, tmp_path: Path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=tmp_path / "a"):
        for _ in range(3):
            optimizer.zero_grad()
            loss(model(torch.randn(16, 6), other())).backward()
            optimizer.step()
    mixing = Run.open(tmp_path / "a").probes(BatchMixingProbe)
    assert all(not probe.changed for probe in mixing)


def test_samples_mix_also_where_another_dimension_is_as_long_as_the_batch(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=tmp_path / "a"):
        for _ in range(3):
            model[1].forward = lambda x: x.transpose(0, 1).reshape(8, -1)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.arange(8) % 3).backward()
            optimizer.step()
    (probe,) = Run.open(tmp_path / "a").probes(BatchMixingProbe)
    assert probe.changed


def test_time_first_is_not_taken_for_mixing(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.GRU(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=tmp_path / "a"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 5, 4))[0].square().mean().backward()
            optimizer.step()
    assert "batch-mixing" not in {probe.probe for probe in Run.open(tmp_path / "a").probes()}


def test_a_probe_that_fails_because_of_us_is_noted_in_the_run_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(step: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(last_step, "_half_batch", broken)
    found = probes(tmp_path / "a")
    assert "half-batch" not in found
    assert found["direction"]["ratio"] == pytest.approx(1, abs=1e-6)
    (failure,) = Run.open(tmp_path / "a").failures()
    assert (failure.check, failure.name, failure.step) == ("probe", "half-batch", 29)
    assert failure.error == "KeyError: 'planted'"


def test_a_model_that_takes_batches_of_one_size_only_is_no_failure_of_ours(tmp_path: Path):
    class OneSize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.view(16, 4))

    model = OneSize()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=tmp_path / "a"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    run = Run.open(tmp_path / "a")
    assert run.failures() == []
    assert {"eval-mode", "direction"} <= {probe.probe for probe in run.probes()}
    assert "half-batch" not in {probe.probe for probe in run.probes()}


@pytest.mark.parametrize("has_way", [False, True])
def test_probes_of_a_step_with_many_calls_end_when_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_way: bool
) -> None:
    if has_way:  # the steps from the only snapshot to the last step have to be played as well
        monkeypatch.setattr(Snapshots, "is_due", lambda self, step: self.latest is None)
    calls = os.open(tmp_path / "calls", os.O_WRONLY | os.O_CREAT)  # replays restore what Python holds

    class Slow(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if is_over:
                os.write(calls, b".")
                time.sleep(0.02)
            return super().forward(input)

    is_over = False
    model = Slow(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch = start_watching(
        to=tmp_path / "run", settings=WatchSettings(probe_seconds=0.5, full_steps=1 if has_way else 20)
    )
    with watch.running():
        for _ in range(8):
            loss = torch.stack([model(torch.randn(16, 8)).square().mean() for _ in range(50)]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        is_over, weight = True, model.weight.detach().clone()
    os.close(calls)
    assert 5 <= (tmp_path / "calls").stat().st_size <= 30  # one probe alone makes 100 and more
    assert torch.equal(model.weight, weight)
    assert "Probes were cut short after 0.5 s." in Run.open(tmp_path / "run").info.notes
