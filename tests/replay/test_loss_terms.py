"""The terms of a loss that reach no parameter of an optimizer, found in its graph and in the calls that made it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from roundoff.record.source_lines import Sources
from roundoff.replay.loss_terms import AddendWatcher, LossTermWatcher

OTHER = nn.Linear(4, 2)
"""A model that no optimizer trains."""


def kinds_in(
    make_loss: Callable[[nn.Module, Tensor], Tensor], *, held: bool = True, other_is_held: bool = False
) -> list[str]:
    """Return the kinds of terms without a path to a parameter, in a loss of a small model."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2), torch.randn(8, 4)
    watcher = LossTermWatcher(step=0, sources=Sources())
    with watcher:
        loss = make_loss(model, x)
    assert watcher.failure is None
    known = {id(p) for p in model.parameters()} if held else set()
    others = {id(p) for p in OTHER.parameters()}
    of_all = known | others if other_is_held else known
    found = watcher.terms_of(loss, held=of_all, stepping=known, others=others - of_all)
    return [term.kind for term in found.terms]


def test_detached_terms_and_numbers_are_found() -> None:
    assert kinds_in(lambda model, x: model(x).mean() + model(x).square().mean().detach()) == ["computed"]
    assert kinds_in(lambda model, x: model(x).mean() * 2 + 0.1 * model(x).std().item()) == ["number"]
    assert kinds_in(lambda model, x: torch.stack([model(x).mean(), x.mean()]).sum()) == ["outside"]


def test_terms_for_an_optimizer_that_does_not_step_are_found() -> None:
    assert kinds_in(lambda model, x: model(x).mean() + OTHER(x).mean(), other_is_held=True) == ["not-stepped"]
    assert kinds_in(lambda _, x: OTHER(x).mean() + OTHER(x).square().mean(), other_is_held=True) == []


def test_terms_with_a_gradient_are_fine() -> None:
    assert kinds_in(lambda model, x: model(x).mean() + 0.1 * model(x).square().mean()) == []
    assert kinds_in(lambda model, x: (model(x) - model(x).detach()).square().sum() + model(x).sum()) == []


def test_what_is_subtracted_inside_of_a_nonlinear_function_is_no_term() -> None:
    assert kinds_in(lambda model, x: (model(x).sum() - model(x).sum().detach()).exp()) == []


def test_a_term_less_its_own_value_is_there_for_its_gradient_alone() -> None:
    def surrogate(model: nn.Module, x: Tensor) -> Tensor:
        other = model(x).square().mean()
        return model(x).mean() + (other - other.item())

    assert kinds_in(surrogate) == []
    assert kinds_in(lambda model, x: model(x).mean() + (model(x).std() - model(x).std().detach())) == []
    assert kinds_in(lambda model, x: model(x).mean() + (model(x).std() - model(x).var().detach())) == ["computed"]


def test_a_term_that_reaches_only_another_model_is_found() -> None:
    assert kinds_in(lambda model, x: model(x).mean() + OTHER(x).mean()) == ["elsewhere"]
    assert kinds_in(lambda model, x: model(x).mean() + OTHER(model(x).repeat(1, 2)).mean()) == []
    assert kinds_in(lambda model, x: model(x).mean() + OTHER(x).mean(), held=False) == []


def test_a_leaf_that_nobody_knows_may_stand_for_a_parameter() -> None:
    unknown = nn.Linear(4, 2)
    assert kinds_in(lambda model, x: model(x).mean() + unknown(x).mean()) == []


X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def in_place(x: Tensor) -> Tensor:
    loss = x.mean()
    loss += 0.5 * x.sum()
    return loss


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: x.mean() + x.sum(), [(2.5, 1), (10, 1)]),
        (lambda x: (x.mean() - 0.5 * x.sum()) / 3, [(2.5, 1), (5, 0.5)]),
        (lambda x: sum([x.mean(), x.sum() / 4, (x / 8).sum()]), [(2.5, 1), (2.5, 0.25), (1.25, 0.125)]),
        (in_place, [(2.5, 1), (5, 0.5)]),
        (lambda x: x.mean() + torch.tensor(2.0) * x.sum() * 3, [(2.5, 1), (60, 6)]),
        (lambda x: x.sum(), []),
        (lambda x: x.mean() + 1.0, []),
    ],
    ids=["plain", "scaled", "python sum", "in place", "tensor factor", "no sum", "a constant"],
)
def test_addends(loss: Callable[[Tensor], Tensor], expected: list[tuple[float, float]]) -> None:
    watcher = AddendWatcher(Sources())
    with watcher:
        total = loss(X.clone().requires_grad_())
    found = watcher.addends_of(total)
    assert watcher.failure is None
    assert [(pytest.approx(addend.value), pytest.approx(addend.factor)) for addend in found] == expected
    assert all(addend.source is not None and "test_loss_terms.py:" in addend.source for addend in found)
