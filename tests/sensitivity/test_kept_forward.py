"""What a site does alone, computed from what a step has kept, against really rounding it in a run of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundoff.sensitivity import Sensitivity, effect_alone, loss_with, measuring_sensitivity

RunStep = Callable[[nn.Module], Tensor]


class SharedRelu(nn.Module):
    """Runs one module twice, adds twice, writes in place and through a view, and drops some."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 16)
        self.norm, self.drop, self.relu = nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU()
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.first(x)))
        z = self.drop(self.relu(self.second(y)))
        y = y + z
        y[:, :8].mul_(1.5)
        y = F.relu(z) - F.relu(y * 0.9)  # one from elsewhere, and one that this site has rounded itself
        return self.head(F.gelu(y + x.mean(1, keepdim=True)).add_(0.1))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Hidden(nn.Module):
    def __init__(self, hide: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.inside, self.after = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.hide = hide

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.tanh(self.hide(self.inside, torch.tanh(self.before(x)))))


def run_step(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(32, 6, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    torch.manual_seed(7)
    return F.cross_entropy(model(x).double(), y)


def measured(model: nn.Module, *, fmt: str = "e4m3", computed_again: int = 256) -> Sensitivity:
    with measuring_sensitivity(step=0, formats=[fmt], computed_again=computed_again) as found:
        run_step(model).backward()
    return found.sensitivity


def net(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "e5m2"])
def test_every_site_and_every_op_does_alone_what_really_rounding_it_does(fmt: str):
    model = net(SharedRelu)
    found = measured(model, fmt=fmt)
    keys = [key for key in dict.fromkeys(effect.key for effect in found.effects) if not key.startswith("<loop>")]
    sites = [site for site in found.sites if site not in ("<loop>", "<model>")]  # the model holds all the others
    true = effect_alone(model, run_step, fmt, [*sites, *keys])
    predicted = {key: found.loss_change_with({key: fmt}) for key in true}
    assert {"relu", "<model>:gelu", "<model>:relu", "norm:batch_norm"} <= set(true)
    del predicted["<model>:mul"], true["<model>:mul"]  # what is written into a part of another tensor is not followed
    assert predicted == pytest.approx(true, rel=1e-3, abs=1e-8)


def test_the_own_code_of_a_site_is_separate_from_the_sites_inside_it():
    model = net(SharedRelu)
    found = measured(model)
    own = {effect.key: "e4m3" for effect in found.of("e4m3", site="<model>")}
    true = loss_with(model, run_step, own) - loss_with(model, run_step, {})
    assert found.loss_change("e4m3", site="<model>") == pytest.approx(true, rel=1e-3)


def test_the_first_order_alone_misses_what_is_quadratic():
    model = net(SharedRelu)
    true = effect_alone(model, run_step, "e5m2", ["relu", "second", "first"])
    first_order = measured(model, fmt="e5m2", computed_again=0)
    missed = [abs(first_order.loss_change("e5m2", site=site) / true[site] - 1) for site in true]
    assert max(missed) > 0.1


def test_only_the_sites_that_matter_most_are_computed():
    model = net(SharedRelu)
    first_order, some = measured(model, computed_again=0), measured(model, computed_again=2)
    changed = {
        one.site
        for one, other in zip(first_order.effects, some.effects, strict=True)
        if one.loss_change != other.loss_change
    }
    largest = max(first_order.sites, key=lambda site: abs(first_order.loss_change("e4m3", site=site)))
    assert 1 <= len(changed) <= 2
    assert largest in changed or f"{largest}:" in str(some.missed_by_ops)


@pytest.mark.parametrize(
    "hide",
    [
        lambda module, x: checkpoint(module, x, use_reentrant=True),
        lambda module, x: module(Doubled.apply(x)),
    ],
    ids=["reentrant-checkpoint", "own-function"],
)
def test_what_goes_through_something_unseen_is_left_to_the_first_order(hide):
    model = net(lambda: Hidden(hide))
    found, first_order = measured(model), measured(model, computed_again=0)
    for sensitivity in (found, first_order):
        assert sensitivity.loss_change("e4m3", site="before") != 0
    assert found.loss_change("e4m3", site="before") == first_order.loss_change("e4m3", site="before")
    true = effect_alone(model, run_step, "e4m3", ["after"])["after"]
    assert found.loss_change("e4m3", site="after") == pytest.approx(true, rel=1e-3)


def test_a_checkpoint_is_seen_through():
    model = net(lambda: Hidden(lambda module, x: checkpoint(module, x, use_reentrant=False)))
    found = measured(model)
    true = effect_alone(model, run_step, "e4m3", ["before", "inside", "after"])
    assert {site: found.loss_change("e4m3", site=site) for site in true} == pytest.approx(true, rel=1e-3)


def test_microbatches_and_a_graph_that_is_used_twice_add_up():
    def halves(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for place in (slice(0, 16), slice(16, 32)):
            (F.cross_entropy(model(x[place]).double(), y[place]) / 2).backward()

    def twice(model: nn.Module, x: Tensor, y: Tensor) -> None:
        out = model(x).double()
        (F.cross_entropy(out, y) * 0.25).backward(retain_graph=True)
        (F.cross_entropy(out, y) * 0.75).backward()

    def once(model: nn.Module, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x).double(), y).backward()

    x, y = torch.randn(32, 6), torch.randint(0, 4, (32,))
    changes = []
    for step in (once, halves, twice):
        model = net(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with measuring_sensitivity(step=0, formats=["e4m3"]) as found:
            step(model, x, y)
            optimizer.step()
        changes.append([found.sensitivity.loss_change("e4m3", site=site) for site in ("0", "1", "2")])
    assert changes[1] == pytest.approx(changes[0], rel=1e-4)
    assert changes[2] == pytest.approx(changes[0], rel=1e-4)


def test_a_scaled_loss_counts_without_its_scale():
    x, y = torch.randn(32, 6), torch.randint(0, 4, (32,))
    model = net(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)))
    changes = []
    for scale in (1.0, 1024.0):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with measuring_sensitivity(step=0, formats=["e4m3"]) as found:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
        changes.append([found.sensitivity.loss_change("e4m3", site=site) for site in ("0", "1", "2")])
    assert changes[1] == pytest.approx(changes[0], rel=1e-3, abs=1e-6)
