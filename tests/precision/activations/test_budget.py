import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.errors import RecipeError
from roundoff.precision.activations import ActivationSettings, choose_bits, compress_activations


class Deaf(nn.Module):
    """Saves as much as its neighbours, but almost nothing of it reaches the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(64, 64), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-4 * self.act(self.layer(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act1, self.deaf = nn.Linear(64, 64), nn.Tanh(), Deaf()
        self.second, self.act2, self.head = nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
        self.norm, self.dropout = nn.BatchNorm1d(64), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.deaf(self.act1(self.first(x)))
        return self.head(self.dropout(self.norm(self.act2(self.second(x)))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def step_of(net: Net):
    x, y = torch.randn(200, 64), torch.randint(0, 10, (200,))
    return lambda: F.cross_entropy(net(x), y).backward()


def saved_bytes(net: Net, step, bits) -> int:
    with compress_activations(net, ActivationSettings(bits=bits)) as compressed:
        step()
        return compressed.report().bytes_after


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2, 0.1])
def test_meets_its_budget_and_uses_it(net, share):
    step = step_of(net)
    plain = saved_bytes(net, step, 32)
    chosen = choose_bits(net, step, int(plain * share))
    taken = saved_bytes(net, step, chosen)
    assert taken <= plain * share
    assert taken > plain * share * 0.5
    assert set(chosen.values()) <= {2, 4, 8, 32}


def test_a_budget_that_everything_fits_into_compresses_nothing(net):
    assert set(choose_bits(net, step_of(net), 10**9).values()) == {32}


def test_a_site_that_hardly_touches_the_gradient_gets_the_fewest_bits(net):
    step = step_of(net)
    chosen = choose_bits(net, step, saved_bytes(net, step, 4))
    assert chosen["deaf.act"] == 2
    assert chosen["act1"] > 2


def test_does_less_harm_than_the_same_bytes_spent_evenly(net):
    torch.manual_seed(3)
    step = step_of(net)
    budget = saved_bytes(net, step, 4)

    def gradient() -> Tensor:
        net.zero_grad()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            step()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    def harm(bits) -> float:
        generator = torch.Generator().manual_seed(0)
        with compress_activations(net, ActivationSettings(bits=bits), generator=generator):
            return sum(float((gradient() - plain).square().sum()) for _ in range(20))

    plain = gradient()
    assert harm(choose_bits(net, step, budget)) < harm(4)


def test_leaves_gradients_buffers_and_random_state_as_they_were(net):
    step = step_of(net)
    step()
    state, mean = torch.get_rng_state(), net.norm.running_mean.clone()
    grads = [p.grad.clone() for p in net.parameters()]
    choose_bits(net, step, 200_000)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net.norm.running_mean, mean)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(net.parameters(), grads, strict=True))
    assert not any(m._forward_hooks for m in net.modules())


def test_a_budget_that_cannot_be_met_is_an_error_that_says_the_least(net):
    step = step_of(net)
    least = saved_bytes(net, step, 2)
    with pytest.raises(RecipeError, match=f"with 2 bits at every site they take {least} bytes"):
        choose_bits(net, step, least - 1)
    assert saved_bytes(net, step, choose_bits(net, step, least)) == least


def test_a_step_that_does_not_train_is_an_error(net):
    for step in (lambda: net(torch.randn(200, 64)), lambda: net.first(torch.randn(200, 64)).sum().backward()):
        with pytest.raises(RecipeError, match="saved no activations or left no gradients"):
            choose_bits(net, step, 10**6)
