"""What sites came to is counted from their tensors, and added up along the tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.diagnose.numbers.site_ranges import DEEPEST, SiteRange, merge_ranges, site_ranges, site_tree
from roundoff.diagnose.step_flow import recorded_steps
from roundoff.record import recording
from roundoff.runs import Run


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SiteRange]:
    net = nn.Sequential()
    net.add_module("ones", nn.Linear(8, 8, bias=False))
    nn.init.constant_(net.ones.weight, 1 / 8)
    net.add_module("large", nn.Sequential(Function(lambda x: x * 70000.0), Function(lambda x: x / 140.0)))
    net.add_module("tiny", Function(lambda x: x * 1e-42))
    net.add_module("none", Function(lambda x: x * 0.0))
    folder = tmp_path_factory.mktemp("ranges") / "run"
    with recording(to=folder, steps=range(1), reference="fp64"):
        net(torch.ones(4, 8)).sum().backward()
    return site_ranges(recorded_steps(Run.open(folder)))


def test_a_number_that_a_format_cannot_hold_is_counted_for_it(ranges: dict[str, SiteRange]) -> None:
    first = ranges["large.0"]
    assert first.absmax == 70000.0
    assert first.num_beyond == {"bf16": 0, "fp16": 1, "e5m2": 1, "e4m3": 1}
    assert first.share_beyond("fp16") == 1 / first.num_tensors
    assert ranges["large.1"].num_beyond == {"bf16": 0, "fp16": 0, "e5m2": 0, "e4m3": 1}


def test_subnormals_and_zeros_are_shares_of_elements(ranges: dict[str, SiteRange]) -> None:
    assert ranges["tiny"].num_subnormal >= 32
    assert ranges["none"].zero_share > 0
    assert ranges["large.0"].subnormal_share == 0


def test_the_introduced_error_is_there_where_it_was_measured(ranges: dict[str, SiteRange]) -> None:
    assert ranges["large.0"].introduced_ulps is not None
    assert ranges["large.0"].introduced_ulps < 1


def test_a_branch_is_what_is_below_it(ranges: dict[str, SiteRange]) -> None:
    (large,) = [node for node in site_tree(ranges) if node.name == "large"]
    assert [child.site for child in large.children] == ["large.0", "large.1"]
    assert large.total == merge_ranges([ranges["large.0"], ranges["large.1"]])
    assert large.total.num_beyond["e4m3"] == 2


def test_a_site_that_runs_ops_itself_counts_in_its_own_branch() -> None:
    one = SiteRange(num_tensors=1, num_nonfinite=1, absmax=2.0)
    (node,) = site_tree({"a": one, "a.b": one})
    assert (node.total.num_tensors, node.total.num_nonfinite) == (2, 2)
    assert [child.total.num_tensors for child in node.children] == [1]


def test_a_name_of_ten_thousand_dots_is_no_problem() -> None:
    (node,) = site_tree({".".join("a" * 10_000): SiteRange(num_tensors=1)})
    depth = 0
    while node.children:
        (node,) = node.children
        depth += 1
    assert depth == DEEPEST


def test_no_steps_have_no_sites() -> None:
    assert site_ranges([]) == {}


def test_elements_that_a_format_would_make_zero_are_counted_where_there_are_histograms(
    ranges: dict[str, SiteRange], tmp_path: Path
) -> None:
    assert ranges["ones"].share_lost("fp16") is None
    net = nn.Sequential(Function(lambda x: x * 2.0**-26), Function(lambda x: x * 2.0**15))
    with recording(net, to=tmp_path / "run", steps=range(1), histograms=True):
        net(torch.tensor([0.0, 1.0, 1.0, 4.0]))
    found = site_ranges(recorded_steps(Run.open(tmp_path / "run")))
    first, second = found["Sequential:0"], found["Sequential:1"]
    assert (first.num_counted, first.share_lost("fp16"), second.share_lost("fp16")) == (3, 2 / 3, 0.0)
    assert merge_ranges([first, second]).share_lost("fp16") == 1 / 3
