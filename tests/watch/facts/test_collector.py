"""What is written about a training besides its numbers."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import BatchFacts, ParameterFacts, Run, Structure
from roundoff.watch.facts import collector
from roundoff.watch.watching import watching


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, padding_idx=0)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.body = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        nn.init.constant_(self.body.weight, 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids)).mean(1))


def facts(folder: Path) -> tuple[Structure, list[BatchFacts]]:
    torch.manual_seed(0)
    model = Tied()
    model.body.bias.requires_grad_(False)
    ids, labels = torch.randint(0, 7, (5, 3)), torch.tensor([1, 1, 2, 6, 6])
    with watching(to=folder):
        optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if n != "body.weight"], lr=0.1, eps=1e-6)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels).backward()
            optimizer.step()
    run = Run.open(folder)
    (structure,) = run.structures()
    return structure, run.inputs()


def of(structure: Structure, name: str) -> ParameterFacts:
    return next(parameter for parameter in structure.parameters if parameter.name == name)


def test_parameters_say_who_holds_them_and_whether_backward_came(tmp_path: Path):
    structure, _ = facts(tmp_path / "a")
    assert structure.step == 0
    body, bias, unused = (of(structure, name) for name in ("body.weight", "body.bias", "unused.weight"))
    assert (body.optimizers, body.has_gradient, body.is_reached) == ((), True, True)
    assert (bias.optimizers, bias.requires_grad, bias.is_reached) == (("AdamW",), False, False)
    assert (unused.optimizers, unused.has_gradient, unused.is_reached) == (("AdamW",), False, False)


def test_start_values_and_equal_rows_are_those_before_the_first_step(tmp_path: Path):
    structure, _ = facts(tmp_path / "a")
    body = of(structure, "body.weight")
    assert (body.mean, body.std, body.absmax, body.equal_rows) == (0.5, 0.0, 0.5, True)
    assert not of(structure, "unused.weight").equal_rows


def test_modules_and_optimizers_come_with_their_settings(tmp_path: Path):
    structure, _ = facts(tmp_path / "a")
    embedding = next(module for module in structure.modules if module.site == "embedding")
    assert (embedding.kind, embedding.training) == ("Embedding", True)
    assert embedding.settings["padding_idx"] == 0
    (optimizer,) = structure.optimizers
    assert (optimizer.name, optimizer.has_state) == ("AdamW", False)
    assert (optimizer.groups[0]["lr"], optimizer.groups[0]["eps"], optimizer.groups[0]["betas"]) == (
        0.1,
        1e-6,
        [0.9, 0.999],
    )


def test_models_that_have_died_are_not_described_again(tmp_path: Path):
    def train() -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()

    with watching(to=tmp_path / "a"):
        train()
        train()
    looks = Run.open(tmp_path / "a").structures()
    assert [(look.step, [optimizer.name for optimizer in look.optimizers]) for look in looks] == [
        (0, ["SGD"]),
        (3, ["SGD#2"]),
    ]


def test_batches_are_described_with_their_labels_and_the_loss_they_meet(tmp_path: Path):
    _, (first, second, _) = facts(tmp_path / "a")
    ids, labels = first.tensors
    assert (ids.place, ids.shape, ids.dtype, ids.is_target) == ("<model>[0]", (5, 3), "int64", False)
    assert (labels.place, labels.is_target) == ("cross_entropy[1]", True)
    assert labels.counts == {"1": 2, "2": 1, "6": 2}
    assert (first.criterion, first.num_classes, first.rows_sum_to_one) == ("cross_entropy", 7, False)
    assert second.tensors[0].hash == ids.hash


def test_every_sample_has_a_hash_in_its_place(tmp_path: Path):
    facts(tmp_path / "a")
    table = Run.open(tmp_path / "a").hashes(step=0).to_list()
    samples = [row for row in table if row["kind"] == "sample"]
    assert [row["name"] for row in samples] == ["<model>[0]"] * 5
    assert len({row["hash"] for row in samples}) == 5


def test_a_fact_that_fails_because_of_us_is_noted_once_and_the_training_is_watched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(collector, "batch_facts_of", broken)
    structure, inputs = facts(tmp_path / "a")
    run = Run.open(tmp_path / "a")
    (failure,) = run.failures()
    assert (failure.check, failure.name, failure.step) == ("fact", "batch", 0)
    assert failure.error == "KeyError: 'planted'"
    assert structure.parameters
    assert inputs == []
    assert run.info.notes == ()
