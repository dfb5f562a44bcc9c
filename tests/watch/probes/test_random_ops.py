import torch
from torch import nn
from torch.nn import functional as F

from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.source_lines import Sources
from roundoff.watch.probes.last_step import noting_random_ops


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calm = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.calm(x)) + torch.rand(4)


def noted(model: nn.Module) -> list[tuple[object, object]]:
    sites = Sites()
    sites.of_module(model, None)
    with noting_random_ops(sites, Sources()) as found:
        model(torch.ones(2, 4))
    return [(each.site, each.op) for each in found]


def test_ops_that_draw_are_named_with_their_sites():
    assert noted(Noisy()) == [("drop", "aten.bernoulli_"), ("<model>", "aten.rand")]


def test_dropout_that_is_off_draws_nothing():
    model = Noisy().eval()
    assert noted(model) == [("<model>", "aten.rand")]


def test_attention_without_dropout_draws_nothing():
    x = torch.ones(1, 2, 4, 8)
    with noting_random_ops(Sites(), Sources()) as found:
        F.scaled_dot_product_attention(x, x, x)
    assert found == []


def test_outside_of_any_module_the_loop_draws():
    with noting_random_ops(Sites(), Sources()) as found:
        torch.randn(3)
    assert [each.site for each in found] == [LOOP]
    assert __file__.rpartition("/")[2] in str(found[0].source)
