"""Whether samples of a batch depend on each other; test_last_step.py has whole trainings that mix them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import BatchMixingProbe
from roundoff.watch.probes.batch_mixing import batch_mixing
from tests.replay.taped import taped


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(self.inner(given[0]), *given[1:])


def mixing(function: Callable[..., Tensor], folder: Path, *others: Tensor) -> BatchMixingProbe | None:
    torch.manual_seed(0)
    model, x, y = Calls(function), torch.randn(6, 4), torch.randn(6, 4)
    return batch_mixing(taped(folder, lambda: F.mse_loss(model(x, *others), y).backward()).replayed_step())


def test_samples_that_keep_to_themselves_change_no_other(tmp_path: Path) -> None:
    assert mixing(torch.relu, tmp_path / "run") == BatchMixingProbe(step=0, sample=3, changed=(), site=None)


def test_the_code_that_mixes_is_named_with_those_that_changed(tmp_path: Path) -> None:
    found = mixing(lambda x: x + x.roll(1, 0), tmp_path / "run")
    assert found is not None
    assert (found.changed, found.site) == ((4,), "<model>")


def test_nodes_of_a_graph_are_meant_to_meet(tmp_path: Path) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 5]])
    assert mixing(lambda x, e: x.index_add(0, e[1], x[e[0]]), tmp_path / "run", edges) is None


def test_weights_between_pairs_of_samples_mean_a_graph_too(tmp_path: Path) -> None:
    assert mixing(lambda x, a: a @ x, tmp_path / "run", torch.rand(6, 6)) is None


def test_what_changes_by_itself_tells_nothing(tmp_path: Path) -> None:
    count = iter(range(1000))
    assert mixing(lambda x: x + next(count), tmp_path / "run") is None


def test_a_single_sample_has_no_other_to_mix_with(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    assert (
        batch_mixing(taped(tmp_path / "run", lambda: model(torch.ones(1, 4)).sum().backward()).replayed_step()) is None
    )


def test_a_mask_over_time_as_long_as_the_batch_is_large_is_no_sample(tmp_path: Path) -> None:
    later = torch.full((6, 6), -torch.inf).triu(1)
    found = mixing(lambda x, mask: x + mask.exp().sum(1)[:4], tmp_path / "run", later)
    assert found == BatchMixingProbe(step=0, sample=3, changed=(), site=None)
