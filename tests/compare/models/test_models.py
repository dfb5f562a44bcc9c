"""Two models from the same weights: the same, or the first module that is not; and nothing of them is changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import roundoff
from roundoff.compare.models.model_comparison import ModelComparison, compare_models
from roundoff.errors import CompareError
from tests.compare.watched_trainings import Transformer, mlp

IDS = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(2))
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
Y = torch.tensor([0, 1, 2, 3, 0])


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


class OtherNames(nn.Module):
    """A transformer that computes the same under other names."""

    def __init__(self, *, gelu: str = "none") -> None:
        super().__init__()
        self.wte = nn.Embedding(20, 16)
        self.h = Transformer(gelu=gelu).blocks
        self.lm_head = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


class InByOut(nn.Module):
    """A linear layer whose weight has the other layout."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_in, num_out))
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class WrongBackward(torch.autograd.Function):
    """A ReLU whose gradient is one percent too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(gradient, ctx.saved_tensors[0], 0) * 1.01


class WrongReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return WrongBackward.apply(x)


def place(comparison: ModelComparison) -> tuple[str, str] | None:
    found = comparison.divergence
    return (found.cause, found.site) if found is not None else None


def test_models_that_compute_the_same_do_not_differ_whatever_they_were_drawn_as() -> None:
    comparison = compare_models(seeded(Transformer, 0), seeded(Transformer, 1), IDS)
    assert not comparison.differs
    assert comparison.step.is_identical
    assert comparison.losses[0] == comparison.losses[1]
    assert len(comparison.transfer.pairs) == 23
    assert str(comparison) == (
        "The models compute the same, bit for bit, in forward and backward. "
        "The candidate's copy got 23 tensors of the reference."
    )


@pytest.mark.parametrize(
    ("change", "site"), [({"eps": 1e-3}, "blocks.0.norm"), ({"gelu": "tanh"}, "blocks.0.mlp.1")], ids=["eps", "gelu"]
)
def test_the_first_module_that_computes_something_else_is_named(change: dict[str, Any], site: str) -> None:
    comparison = compare_models(Transformer().eval(), Transformer(**change).eval(), IDS)
    assert place(comparison) == ("forward", site)
    assert f"The models differ first in forward, at {site} / aten." in comparison.verdict


def test_other_names_line_up_and_do_not_hide_a_difference() -> None:
    assert not compare_models(Transformer(), OtherNames(), IDS).differs
    assert place(compare_models(Transformer(), OtherNames(gelu="tanh"), IDS)) == ("forward", "blocks.0.mlp.1")


def test_weights_of_the_other_layout_are_turned_square_ones_too() -> None:
    turned = nn.Sequential(InByOut(8, 32), nn.ReLU(), InByOut(32, 32), nn.ReLU(), InByOut(32, 4))
    comparison = compare_models(mlp(), turned, X)
    assert [reference for reference, _ in comparison.transfer.transposed] == ["0.weight", "2.weight", "4.weight"]
    assert not comparison.differs
    turned[3] = nn.LeakyReLU(0.1)
    assert place(compare_models(mlp(), turned, X)) == ("forward", "3")


def test_a_wrong_gradient_is_found_in_backward() -> None:
    wrong = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), WrongReLU(), nn.Linear(32, 4))
    assert place(compare_models(mlp(), wrong, X)) == ("backward", "3")


def test_another_loss_is_found_in_the_loop() -> None:
    comparison = compare_models(
        mlp(), mlp(), X, targets=Y, loss=(F.cross_entropy, partial(F.cross_entropy, label_smoothing=0.1))
    )
    assert place(comparison) == ("forward", "<loop>")


def test_another_optimizer_is_found_in_its_step() -> None:
    plain, decaying = (partial(torch.optim.AdamW, lr=0.01, weight_decay=decay) for decay in (0.0, 0.1))
    comparison = compare_models(mlp(), mlp(), X, targets=Y, loss=F.cross_entropy, optimizer=(plain, decaying))
    found = place(comparison)
    assert found is not None
    assert found[0] == "optimizer"


def test_parameters_that_only_one_has_are_reported() -> None:
    layers = list(mlp())
    comparison = compare_models(mlp(), nn.Sequential(*layers[:4], nn.LayerNorm(32), layers[4]), X)
    assert comparison.transfer.only_candidate == ("4.weight", "4.bias")
    assert "Only the candidate has 4.weight, 4.bias." in comparison.verdict
    assert place(comparison) == ("forward", "4")


def test_dropout_draws_the_same_numbers_in_both() -> None:
    assert not compare_models(Transformer(p=0.5).train(), Transformer(p=0.5).train(), IDS).differs


@pytest.mark.parametrize("inputs", [IDS, (IDS,), {"ids": IDS}], ids=["tensor", "tuple", "dict"])
def test_inputs_are_handed_over_as_they_are_meant(inputs: Any) -> None:
    assert not compare_models(Transformer(), Transformer(), inputs).differs


def test_a_model_without_anything_to_train_is_compared_forward() -> None:
    frozen = Transformer().requires_grad_(False)
    assert place(compare_models(frozen, Transformer(eps=1e-3).requires_grad_(False), IDS)) == (
        "forward",
        "blocks.0.norm",
    )


def state_of(model: nn.Module) -> list[Any]:
    return [
        [x.clone() for x in model.state_dict().values()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [module.training for module in model.modules()],
        [len(module._forward_hooks) for module in model.modules()],
    ]


def same(reference: Any, candidate: Any) -> bool:
    if isinstance(reference, Tensor):
        return torch.equal(reference, candidate)
    return all(map(same, reference, candidate)) if isinstance(reference, list) else reference == candidate


def test_models_inputs_and_random_numbers_stay_as_they_are() -> None:
    models = [nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)) for _ in range(2)]
    models[1][2].eval()
    for model in models:
        model(X).sum().backward()
    before = [state_of(model) for model in models]
    inputs = X.clone()
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    compare_models(
        models[0], models[1], inputs, metrics={"mean": lambda output, _: output.mean()}, data=([(X, Y)], [(2 * X, Y)])
    )
    assert same(before, [state_of(model) for model in models])
    assert torch.equal(inputs, X)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(np.random.get_state())) == states[1:]


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float().mean()


def total_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="sum")


BATCHES = [
    (torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)), torch.arange(16) % 4) for seed in range(2)
]


def blamed(candidate: nn.Module, metric: Any = F.cross_entropy, batches: Any = BATCHES) -> list[str]:
    comparison = compare_models(seeded(mlp), candidate, X, metrics={"score": metric}, data=(BATCHES, batches))
    return [change.change for change in comparison.metrics if change.matters]


def test_nothing_is_blamed_where_all_is_the_same() -> None:
    assert blamed(seeded(mlp)) == []


def test_the_model_is_blamed_for_what_it_computes() -> None:
    other = seeded(mlp)
    other[1] = nn.LeakyReLU(0.5)
    assert blamed(other) == ["model"]


def test_weights_are_blamed_where_the_model_is_the_same() -> None:
    assert blamed(seeded(mlp, 1)) == ["weights"]


def test_data_and_metric_are_blamed_for_themselves() -> None:
    doubled = [(2 * x, y) for x, y in BATCHES]
    assert blamed(seeded(mlp), batches=doubled) == ["data"]
    assert blamed(seeded(mlp), metric=(F.cross_entropy, total_loss)) == ["metric"]
    assert blamed(seeded(mlp), metric=(F.cross_entropy, total_loss), batches=doubled) == ["data", "metric"]


def test_changes_of_a_metric_are_reported_in_words() -> None:
    doubled = [(-x, y) for x, y in BATCHES]
    comparison = compare_models(seeded(mlp), seeded(mlp), X, metrics={"accuracy": accuracy}, data=(BATCHES, doubled))
    first, last = comparison.metrics[0].before, comparison.metrics[-1].after
    assert comparison.verdict.endswith(
        f"accuracy is {first:.4g} against {last:.4g}: changed by data ({first:.4g} to {last:.4g})."
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"targets": Y}, "There are targets and no loss"),
        ({"metrics": {"accuracy": accuracy}}, "Metrics and data belong together"),
        ({"metrics": {"accuracy": accuracy}, "data": ([X], [X])}, r"The reference's data yields no pairs"),
        ({"name_map": {"nowhere": "0.weight"}}, "do not line up by this map"),
    ],
)
def test_arguments_that_do_not_go_together_are_an_error(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(CompareError, match=said):
        compare_models(mlp(), mlp(), X, **arguments)


def test_a_model_that_cannot_be_copied_is_an_error() -> None:
    model = mlp()
    model.kept = model(X)
    with pytest.raises(CompareError, match="The reference cannot be copied"):
        compare_models(model, mlp(), X)


def test_a_model_that_returns_no_numbers_is_an_error() -> None:
    class Names(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "cat"

    with pytest.raises(CompareError, match="return no floating-point tensor"):
        compare_models(Names(), Names(), X)


def test_it_is_a_public_name() -> None:
    assert roundoff.compare_models is compare_models
