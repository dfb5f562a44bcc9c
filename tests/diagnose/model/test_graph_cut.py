"""Graphs that end between the parameters and the loss, and those that only seem to."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from roundoff.diagnose.model.backward import cut_graphs
from tests.diagnose.findings import only
from tests.diagnose.watched_training import watched_training


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.body, self.head, self.unused = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.how != "no_grad"):
            h = torch.relu(self.body(x))
        if self.how == "detach":
            h = h.detach()
        self.unused(h)
        return self.head(h)


def test_a_detach_is_named_with_the_parameters_before_it(tmp_path: Path) -> None:
    finding = only(cut_graphs, watched_training(tmp_path / "run", Net("detach")))
    assert (finding.rule, finding.site, finding.op) == ("graph-cut", "<model>", "aten.detach#0")
    assert finding.source is not None
    assert "test_graph_cut.py" in finding.source
    assert finding.parameter == "body.weight"


def test_a_part_without_gradients_is_named_by_its_last_op(tmp_path: Path) -> None:
    finding = only(cut_graphs, watched_training(tmp_path / "run", Net("no_grad")))
    assert (finding.rule, finding.site, finding.parameter) == ("graph-cut", "<model>", "body.weight")
    assert finding.evidence == ({"without_gradient": ["body.weight", "body.bias"]},)


def test_a_layer_whose_result_no_one_uses_is_no_cut(tmp_path: Path) -> None:
    assert cut_graphs(watched_training(tmp_path / "run", Net("not at all"))) == []
