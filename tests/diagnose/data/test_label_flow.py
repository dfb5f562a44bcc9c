"""Labels that a layer reads are distinguished from those that go past all layers; classes from places in a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose.data.labels import are_places_in_a_row, meets_weights
from roundoff.record import recording
from roundoff.runs import Run, TensorFacts


class Net(nn.Module):
    def __init__(self, use: Callable[[Net, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.side, self.head = nn.Linear(6, 4), nn.Embedding(4, 4), nn.Linear(4, 4)
        self.use = use

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.use(self, x, labels)


def recorded(folder: Path, use: Callable[[Net, Tensor, Tensor], Tensor]) -> tuple[Run, TensorFacts]:
    """Record a step of a model that is given its labels; return the run and what is known of the labels."""
    torch.manual_seed(0)
    model, labels = Net(use), torch.randint(0, 4, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, to=folder, steps=[0], inputs=True):
        F.cross_entropy(model(torch.randn(8, 6), labels), labels).backward()
        optimizer.step()
    run = Run.open(folder)
    given = next(event for event in run.iter_events(step=0, op="input") if event.dtype == "int64")
    return run, TensorFacts(place="<model>[1]", shape=(8,), dtype="int64", hash=f"{given.hash:x}")


def test_labels_that_a_layer_reads_meet_weights(tmp_path: Path) -> None:
    run, labels = recorded(tmp_path / "run", lambda net, x, labels: net.head(net.first(x) + net.side(labels)))
    assert meets_weights(run, 0, labels)


def test_a_margin_on_the_scores_meets_none(tmp_path: Path) -> None:
    run, labels = recorded(tmp_path / "run", lambda net, x, labels: net.first(x).cos() - 0.3 * F.one_hot(labels, 4))
    assert not meets_weights(run, 0, labels)


def test_labels_that_are_lost_sight_of_count_as_read(tmp_path: Path) -> None:
    run, labels = recorded(tmp_path / "run", lambda net, x, labels: net.first(x))
    assert meets_weights(run, 0, labels)


def test_scores_put_together_from_several_are_places_in_a_row(tmp_path: Path) -> None:
    def against_others(net: Net, x: Tensor, labels: Tensor) -> Tensor:
        h = net.first(x)
        return torch.cat([h.sum(-1, keepdim=True), h @ h.detach()[:5].T], -1) / 0.2

    run, _ = recorded(tmp_path / "others", against_others)
    assert are_places_in_a_row(run, 0)
    run, _ = recorded(tmp_path / "classes", lambda net, x, labels: net.head(net.first(x)) / 0.2)
    assert not are_places_in_a_row(run, 0)
