"""The switch `randomness`: the same numbers whatever draws them, and the same again where a draw is repeated."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from roundoff.errors import SwitchError
from roundoff.precision import apply_recipe
from roundoff.record import recording
from roundoff.runs import Run
from roundoff.switches import switching
from roundoff.watch.watching import watching

ONES = torch.ones(6, 8)

DRAWS = {
    "dropout": lambda: F.dropout(ONES, 0.5),
    "dropout in place": lambda: F.dropout(ONES.clone(), 0.5, inplace=True),
    "dropout1d": lambda: F.dropout1d(ONES[None], 0.5),
    "alpha dropout": lambda: F.alpha_dropout(ONES, 0.5, training=True),
    "feature alpha dropout": lambda: F.feature_alpha_dropout(ONES, 0.5, training=True),
    "fused dropout": lambda: torch.native_dropout(ONES, 0.5, True),
    "rrelu": lambda: F.rrelu(-ONES, training=True),
    "gumbel softmax": lambda: F.gumbel_softmax(ONES),
    "attention": lambda: F.scaled_dot_product_attention(ONES[None], ONES[None], ONES[None], dropout_p=0.5),
    "lstm": lambda: _lstm(),
    "rand": lambda: torch.rand(5),
    "rand out": lambda: torch.rand(5, out=torch.empty(5)),
    "randn like": lambda: torch.randn_like(ONES),
    "randint": lambda: torch.randint(0, 100, (5,)),
    "randint like": lambda: torch.randint_like(ONES, 100),
    "randperm": lambda: torch.randperm(20),
    "bernoulli": lambda: torch.bernoulli(ONES * 0.5),
    "bernoulli in place": lambda: ONES.clone().bernoulli_(0.3),
    "bernoulli of a tensor": lambda: ONES.clone().bernoulli_(ONES * 0.3),
    "multinomial": lambda: torch.multinomial(ONES, 3),
    "normal": lambda: torch.normal(ONES, ONES),
    "normal of numbers": lambda: torch.normal(0.0, 1.0, (5,)),
    "poisson": lambda: torch.poisson(ONES * 4),
    "gamma": lambda: torch.distributions.Gamma(ONES, ONES).sample(),
    "binomial": lambda: torch.binomial(ONES * 9, ONES * 0.5),
    **{
        name: lambda name=name: getattr(torch.empty(7), name)()
        for name in ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "random_")
    },
    "geometric_": lambda: torch.empty(7).geometric_(0.3),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(7)),
    "initial weights": lambda: nn.Linear(3, 3).weight.detach(),
}


def _lstm() -> Tensor:
    torch.default_generator.manual_seed(1)
    lstm = nn.LSTM(8, 8, num_layers=3, dropout=0.5)
    return lstm(ONES)[0].detach()


def as_list(drawn: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [drawn] if isinstance(drawn, Tensor) else list(drawn)


def drawn_twice(draw, seed: str) -> list[Tensor]:
    with switching({"randomness": seed}):
        return [*as_list(draw()), *as_list(draw())]


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_depends_on_the_seed_and_on_its_turn(name: str):
    draw = DRAWS[name]
    torch.manual_seed(5)
    first = drawn_twice(draw, "3")
    torch.manual_seed(6)
    again, other = drawn_twice(draw, "3"), drawn_twice(draw, "4")
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))
    if name != "lstm":  # which seeds itself
        half = len(first) // 2
        assert not all(map(torch.equal, first[:half], first[half:]))


def test_numbers_are_distributed_as_they_should_be():
    with switching({"randomness": "0"}):
        dropped = F.dropout(torch.ones(100_000), 0.3)
        normal = torch.randn(100_000)
        permutation = torch.randperm(1000)
    assert dropped.mean() == pytest.approx(1.0, abs=0.01)
    assert sorted(dropped.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert (normal.mean().item(), normal.std().item()) == pytest.approx((0.0, 1.0), abs=0.02)
    assert sorted(permutation.tolist()) == list(range(1000))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_get_the_same_numbers(dtype: torch.dtype):
    def draws(dtype: torch.dtype) -> list[Tensor]:
        with switching({"randomness": "0"}):
            x = torch.ones(64, dtype=dtype)
            return [F.dropout(x, 0.5), torch.rand(64, dtype=dtype), torch.randn_like(x), x.clone().uniform_(-1, 1)]

    for wide, other in zip(draws(torch.float32), draws(dtype), strict=True):
        assert other.dtype is dtype
        assert torch.equal(wide.to(dtype), other)


def test_memory_layouts_get_the_same_numbers():
    with switching({"randomness": "0"}):
        plain = F.dropout(torch.ones(2, 3, 4, 5), 0.5)
    with switching({"randomness": "0"}):
        other = F.dropout(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), 0.5)
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, other)


def test_a_device_that_has_an_op_for_dropout_drops_what_the_others_drop():
    with switching({"randomness": "0"}):
        composed = F.dropout(ONES, 0.4)
    with switching({"randomness": "0"}):
        fused, mask = torch.native_dropout(ONES, 0.4, True)
    assert torch.equal(composed, fused)
    assert torch.equal(mask, composed > 0)


@pytest.mark.parametrize("drop", [F.dropout, lambda x, p: torch.native_dropout(x, p, True)[0]])
def test_the_backward_pass_drops_what_the_forward_dropped(drop):
    x = torch.ones(64, requires_grad=True)
    with switching({"randomness": "0"}):
        y = drop(x, 0.5)
        y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_leaky_relus_of_random_slope_have_that_slope_in_the_backward_pass():
    x = torch.full((16,), -1.0, requires_grad=True)
    with switching({"randomness": "0"}):
        y = F.rrelu(x, training=True)
    y.sum().backward()
    assert torch.equal(x.grad, -y.detach())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_activations_are_dropped_as_before(use_reentrant: bool):
    def gradient(*, recompute: bool) -> Tensor:
        with switching({"randomness": "0"}):
            net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5))
            x = torch.ones(4, 8, requires_grad=True)
            y = checkpoint(net, x, use_reentrant=use_reentrant) if recompute else net(x)
            (y * torch.rand(4, 8)).sum().backward()
            return net[0].weight.grad

    assert torch.equal(gradient(recompute=True), gradient(recompute=False))


def test_a_training_with_shuffled_data_and_dropout_is_repeatable_and_ends_elsewhere_with_another_seed():
    def train(seed: str) -> list[float]:
        losses = []
        with switching({"randomness": seed}):
            net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
            net, optimizer = apply_recipe(net, torch.optim.SGD(net.parameters(), lr=0.1), "bf16-stochastic")
            for x, y in DataLoader(TensorDataset(torch.rand(32, 4), torch.rand(32, 1)), batch_size=8, shuffle=True):
                loss = F.mse_loss(net(x), y)
                optimizer.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    first = train("0")
    torch.rand(3)
    assert train("0") == first
    assert train("1") != first


def test_seeding_brings_the_same_numbers_again_and_other_seeds_others():
    with switching({"randomness": "0"}):
        torch.manual_seed(7)
        first = torch.rand(4)
        torch.manual_seed(7)
        assert torch.equal(torch.rand(4), first)
        torch.manual_seed(8)
        assert not torch.equal(torch.rand(4), first)


def test_generators_of_the_code_and_of_other_libraries_are_left_alone():
    expected = torch.rand(4, generator=torch.Generator().manual_seed(2))
    random.seed(1)
    np.random.seed(1)
    others = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    with switching({"randomness": "0"}):
        assert torch.equal(torch.rand(4, generator=torch.Generator().manual_seed(2)), expected)
        assert (random.random(), np.random.rand()) == others


def test_what_is_not_random_stays_as_it_is_bit_for_bit():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.rand(4, 8)
    expected = torch.autograd.grad(net(x).sum(), [*net.parameters()])
    attended = F.scaled_dot_product_attention(x[None], x[None], x[None])
    with switching({"randomness": "0"}):
        found = torch.autograd.grad(net(x).sum(), [*net.parameters()])
        assert torch.equal(F.scaled_dot_product_attention(x[None], x[None], x[None]), attended)
    assert all(map(torch.equal, expected, found))


def test_the_generator_continues_after_the_block_as_if_it_had_not_run():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError), switching({"randomness": "0"}):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.rand(4), expected)


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """What one test compiles is none of the others'."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("nothing_compiled")
def test_compiled_models_draw_the_same_numbers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    compiled = torch.compile(net, backend="aot_eager")
    compiled(ONES)
    outputs = []
    for model in (net, compiled):
        with switching({"randomness": "0"}):
            outputs.append(model(ONES))
    assert torch.equal(*outputs)


def test_a_watched_step_is_replayed_with_the_numbers_it_drew(tmp_path: Path):
    with switching({"randomness": "0"}), watching(to=tmp_path / "run"):
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            F.cross_entropy(net(torch.randn(6, 8)), torch.zeros(6, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = Run.open(tmp_path / "run")
    assert {0, 1} <= set(run.steps)
    assert run.info.notes == ()  # else it says that a replay came out differently


def test_what_is_recorded_is_what_was_drawn(tmp_path: Path):
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    with switching({"randomness": "0"}), recording(net, to=tmp_path / "run", steps=[0]):
        net(ONES).sum().backward()
    events = Run.open(tmp_path / "run").events(step=0).to_list()
    ops = {event["op"] for event in events if event["phase"] == "forward"}
    assert {"aten.addmm", "aten.bernoulli_", "aten.div_", "aten.mul"} <= ops
    assert not ops & {"aten.random_", "aten.copy_"}


@pytest.mark.parametrize("seed", ["-1", "a", "", "1.5", str(2**63)])
def test_a_seed_is_a_whole_number(seed: str):
    with pytest.raises(SwitchError) as caught, switching({"randomness": seed}):
        pass
    assert str(caught.value) == (f"Invalid value '{seed}' of the switch randomness.\n  why: it is a seed: 0, 1, 1234.")
