"""What belongs to a training, and its state at one moment."""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import nn

from roundoff.record.structure import outermost_optimizers
from roundoff.replay.state import Training, TrainingState, same_bits


class Wrapper(torch.optim.SGD):
    """An optimizer as frameworks wrap it: it holds the real one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([p for group in inner.param_groups for p in group["params"]])
        self.optimizer = inner


def trained(*, steps: int = 1) -> tuple[Training, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    training = Training()
    training.add_model(model)
    training.add_optimizer(optimizer)
    for _ in range(steps):
        step(model, optimizer)
    return training, model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()


def numbers(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [x.detach().clone() for x in (*model.state_dict().values(), *states)]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def test_models_and_optimizers_are_new_once_and_a_wrapper_counts_as_what_it_wraps() -> None:
    training, model, optimizer = trained()
    assert not training.add_model(model)
    assert not training.add_optimizer(optimizer)
    assert not training.add_optimizer(Wrapper(Wrapper(optimizer)))
    assert list(training.optimizers) == [optimizer]


def test_every_tensor_is_there_once_also_those_of_an_optimizer_alone() -> None:
    training = Training()
    model = nn.Linear(2, 2)
    model.again = model.weight
    alone = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([model.weight, alone])
    lazy = nn.LazyLinear(2)
    for one in (model, lazy):
        training.add_model(one)
    training.add_optimizer(optimizer)
    assert {id(x) for x in training.tensors()} == {id(model.weight), id(model.bias), id(alone)}
    assert len(training.tensors()) == 3
    assert training.num_bytes == 4 * (4 + 2 + 3)


def test_a_replaced_layer_is_state_after_a_new_look() -> None:
    training, model, _ = trained()
    model[0] = nn.Linear(3, 4)
    weight = model[0].weight
    assert not training.is_state(weight)
    training.refresh()
    assert training.is_state(weight)
    assert not training.is_state(weight.detach())


def test_optimizers_are_found_but_not_those_of_a_training_that_broke() -> None:
    training, model, optimizer = Training(), nn.Linear(2, 2), None
    broken = nn.Parameter(torch.tensor([float("nan")]))
    left_over = torch.optim.SGD([broken])
    optimizer = torch.optim.SGD(model.parameters())
    training.add_model(model)
    training.find_optimizers()
    assert optimizer in training.optimizers
    assert left_over not in training.optimizers


def test_buffers_come_with_names_and_only_those_of_floats() -> None:
    training, model, _ = trained()
    assert [name for name, _ in training.buffers()] == ["1.running_mean", "1.running_var"]
    assert model[1].num_batches_tracked.item() == 1


def test_the_training_is_in_the_old_state_inside_the_block_and_in_its_own_after_it() -> None:
    training, model, optimizer = trained()
    state = TrainingState()
    state.take(training)
    then = numbers(model, optimizer)
    model.eval()
    step(model, optimizer)
    now, drawn = numbers(model, optimizer), torch.get_rng_state()
    with contextlib.suppress(RuntimeError), state.swapped_in(training) as own:
        assert equal(numbers(model, optimizer), then)
        assert model.training
        assert own.first_difference() == "a weight"
        raise RuntimeError("a step may fail when it is played again")
    assert equal(numbers(model, optimizer), now)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_first_difference_is_found_in_the_order_weights_buffers_optimizer_state() -> None:
    training, model, optimizer = trained()
    state = TrainingState()
    state.take(training)
    with state.swapped_in(training) as own:
        assert own.first_difference() is None
        optimizer.state[model[0].weight]["exp_avg"].add_(1)
        assert own.first_difference() == "the optimizer's exp_avg"
        model[1].running_mean.add_(1)
        assert own.first_difference() == "a buffer"


def test_installing_a_state_is_for_good_and_can_be_done_twice() -> None:
    training, model, optimizer = trained()
    state = TrainingState()
    state.take(training)
    state.take_gradients()
    then = numbers(model, optimizer)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for _ in range(2):
        step(model, optimizer)
        state.install(training)
        assert equal(numbers(model, optimizer), then)
        assert equal([p.grad for p in model.parameters() if p.grad is not None], gradients)


def test_taking_a_state_again_writes_into_the_same_memory() -> None:
    training, model, optimizer = trained()
    state = TrainingState()
    state.take(training)
    addresses, num_bytes = [kept.data_ptr() for _, kept in state.tensors], state.num_bytes
    step(model, optimizer)
    state.take(training)
    assert [kept.data_ptr() for _, kept in state.tensors] == addresses
    assert state.num_bytes == num_bytes
    assert all(torch.equal(live, kept) for live, kept in state.tensors)


def test_a_model_that_comes_later_joins_with_what_it_has() -> None:
    training, _model, _ = trained()
    state = TrainingState()
    state.take(training)
    later = nn.Linear(1, 1).eval()
    training.add_model(later)
    state.join(training, training.tensors())
    start = copy.deepcopy(later.weight)
    with torch.no_grad():
        later.weight.add_(1)
    later.train()
    with state.swapped_in(training):
        assert torch.equal(later.weight, start)
        assert not later.training


def test_gradients_are_kept_as_they_were_the_first_time() -> None:
    training, model, _ = trained()
    state = TrainingState()
    state.take(training)
    state.take_gradients()
    kept = [None if x is None else x.clone() for _, x in state.gradients]
    for parameter in model.parameters():
        parameter.grad = None
    state.take_gradients()
    assert all(a is None or torch.equal(a, b) for a, (_, b) in zip(kept, state.gradients, strict=True))
    assert any(x is not None for _, x in state.gradients)


def test_of_optimizers_that_share_their_state_one_counts() -> None:
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    outer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    outer.inner = inner  # type: ignore[attr-defined]
    twin = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    twin.state = outer.state
    assert outermost_optimizers([inner, outer, twin]) == [outer]


def test_every_nan_equals_every_other_and_shapes_and_dtypes_count() -> None:
    nan, other = torch.tensor([float("nan"), 1.0]), torch.tensor([-float("nan"), 1.0])
    assert same_bits(nan, other)
    assert not same_bits(nan, torch.tensor([1.0, float("nan")]))
    assert not same_bits(torch.ones(1), torch.ones(2))
    assert not same_bits(torch.ones(1), torch.ones(1, dtype=torch.float64))
    assert not same_bits(torch.tensor([1]), torch.tensor([2]))
