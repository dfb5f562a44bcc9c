"""Names of modules and parameters, in models of every build."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from roundoff.record.loop.sites import Sites
from roundoff.runs import Run

X = torch.randn(4, 3)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Coder(nn.Module):
    """Its parts are called from the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Mlp()
        self.decoder = nn.Linear(2, 3)


def sites(run: Run, *, phase: str | None = None, op: str | None = None) -> list[str]:
    """The sites of ops, in the order they were first seen."""
    return list(dict.fromkeys(e.site for e in run.iter_events(phase=phase, op=op) if "." in e.op))


def names(run: Run) -> list[str | None]:
    return [e.parameter for e in run.iter_events(op="parameter", step=0)]


def backward(*losses: Tensor) -> None:
    for loss in losses:
        loss.sum().backward()


def test_a_model_has_bare_names_and_its_own_ops_are_those_of_the_model(record):
    model = Mlp()
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == ["first", "<model>", "second", "<loop>"]
    assert names(run) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert sites(run, op="aten.relu") == ["<model>"]
    assert sites(run, op="aten.sum", phase="forward") == ["<loop>"]


def test_backward_ops_have_the_site_of_the_forward_op_they_belong_to(record):
    model = Mlp()
    run = record(lambda: backward(model(X)))
    assert sites(run, op="aten.threshold_backward") == ["<model>"]
    assert sites(run, op="aten.mm") == ["second", "first"]


def wrapped_in_data_parallel(model: nn.Module) -> nn.Module:
    return nn.DataParallel(model)


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


class FullyShardedDataParallel(nn.Module):
    """Has the name and the attribute of torch's, which needs several processes; tests/record/test_ranks.py runs it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module

    def forward(self, x: Tensor) -> Tensor:
        return self._fsdp_wrapped_module(x)


WRAPPERS = {
    "DataParallel": wrapped_in_data_parallel,
    "FSDP": FullyShardedDataParallel,
    "checkpoint": checkpoint_wrapper,
    "DataParallel of checkpoint": lambda model: nn.DataParallel(checkpoint_wrapper(model)),
    "FSDP of checkpoint": lambda model: FullyShardedDataParallel(checkpoint_wrapper(model)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_the_prefix_of_a_wrapper_is_dropped(record, wrap):
    model = wrap(Mlp())
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == ["first", "<model>", "second", "<loop>"]
    assert names(run) == ["first.weight", "first.bias", "second.weight", "second.bias"]


@pytest.mark.slow
def test_the_prefix_of_a_compiled_model_is_dropped(record):
    model = compiled(Mlp())
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == ["first", "<model>", "second", "<loop>"]
    assert names(run) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    torch.compiler.reset()


def test_a_wrapped_part_of_a_model_is_named_like_the_part(record):
    model = Mlp()
    model.first = checkpoint_wrapper(model.first)
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == ["first", "<model>", "second", "<loop>"]
    assert names(run) == ["first.weight", "first.bias", "second.weight", "second.bias"]


@pytest.mark.parametrize("given", ["model", "wrapper"])
def test_it_does_not_matter_whether_the_model_is_given_or_its_wrapper(record, given):
    model = Mlp()
    wrapper = nn.DataParallel(model)
    run = record(lambda: backward(wrapper(X), model(X)), model if given == "model" else wrapper)
    assert set(sites(run)) == {"first", "<model>", "second", "<loop>"}
    assert len(names(run)) == 4


def test_a_model_that_is_wrapped_after_it_was_called_keeps_its_names(record):
    model = Mlp()

    def training():
        with torch.no_grad():
            model(X)
        backward(nn.DataParallel(model)(X))

    assert set(sites(record(training))) == {"first", "<model>", "second", "<loop>"}


@pytest.mark.parametrize("name", ["module", "_orig_mod", "_fsdp_wrapped_module"])
def test_an_attribute_of_the_user_that_is_called_like_a_wrappers_stays(record, name):
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, Mlp())

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, name)(x)

    model = Holder()
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == [f"{name}.first", name, f"{name}.second", "<loop>"]
    assert names(run)[0] == f"{name}.first.weight"


def test_a_criterion_is_prefixed_with_its_class(record):
    model, criterion, classes = Mlp(), nn.CrossEntropyLoss(), torch.zeros(4, dtype=torch.long)
    run = record(lambda: criterion(model(X), classes).backward())
    assert sites(run, phase="forward")[:4] == ["first", "<model>", "second", "CrossEntropyLoss:"]
    assert sites(run, op="aten.nll_loss_backward") == ["CrossEntropyLoss:"]


def test_a_criterion_made_anew_in_each_step_keeps_its_name(record):
    model, wanted = Mlp(), torch.zeros(4, 2)

    def training():
        for _ in range(3):
            nn.MSELoss()(model(X), wanted).backward()
            model.zero_grad()

    assert set(sites(record(training))) == {"first", "<model>", "second", "MSELoss:", "<loop>"}


def test_a_criterion_called_before_the_model_does_not_take_the_bare_names(record):
    model, penalty = Mlp(), nn.L1Loss()

    def training():
        value = penalty(model.first.weight, torch.zeros(5, 3))
        (model(X).sum() + value).backward()

    assert set(sites(record(training))) == {"first", "<model>", "second", "L1Loss:", "<loop>"}


def test_further_models_are_prefixed_with_their_class_and_numbered(record):
    first, *others = Mlp(), Mlp(), Mlp(), nn.Sequential(nn.Linear(3, 2))
    run = record(lambda: backward(first(X), *(other(X) for other in others)))
    assert sites(run, phase="forward", op="aten.addmm") == [
        "first", "second", "Mlp:first", "Mlp:second", "Mlp#2:first", "Mlp#2:second", "Sequential:0",
    ]  # fmt: skip
    assert names(run)[4:] == []  # of the others nothing was known when the step began


def test_models_that_are_given_are_named_in_their_order(record):
    maker, critic = nn.Linear(3, 3), Mlp()
    run = record(lambda: backward(critic(maker(X))), [maker, critic])
    assert sites(run, phase="forward") == ["<model>", "Mlp:first", "Mlp:", "Mlp:second", "<loop>"]
    assert names(run) == [
        "weight", "bias", "Mlp:first.weight", "Mlp:first.bias", "Mlp:second.weight", "Mlp:second.bias",
    ]  # fmt: skip


def test_a_part_called_from_the_loop_keeps_its_name_in_the_model(record):
    model = Coder()
    run = record(lambda: backward(model.decoder(model.encoder(X))))
    assert sites(run, phase="forward") == ["encoder.first", "encoder", "encoder.second", "decoder", "<loop>"]
    assert names(run)[0] == "encoder.first.weight"


def test_modules_in_a_plain_list_are_named_after_their_class(record):
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)
            self.layers = [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model = Hidden()
    optimizer = torch.optim.SGD([p for layer in (*model.layers, model.head) for p in layer.parameters()], lr=0.1)

    def training():
        for _ in range(2):
            optimizer.zero_grad()
            backward(model(X))
            optimizer.step()

    run = record(training)
    assert sites(run, phase="forward") == [
        "<model>.<Linear>", "<model>.<Sequential>.0", "<model>.<Sequential>.1", "head", "<loop>",
    ]  # fmt: skip
    for number in (0, 1):
        assert {e.parameter for e in run.iter_events(op="gradient", step=number)} == {
            "head.weight", "head.bias", "<model>.<Linear>.weight", "<model>.<Linear>.bias",
            "<model>.<Sequential>.0.weight", "<model>.<Sequential>.0.bias",
        }  # fmt: skip


def test_modules_made_on_the_fly_have_the_same_names_in_every_step(record):
    class Careless(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.Tanh()(nn.ReLU()(nn.ReLU()(super().forward(x))))

    model = Careless(3, 2)

    def training():
        for _ in range(4):
            backward(model(X))
            model.zero_grad()

    run = record(training)
    assert set(sites(run)) == {"<model>", "<model>.<ReLU>", "<model>.<Tanh>", "<loop>"}
    keys = [{e.key[1:] for e in run.iter_events(step=step)} for step in range(4)]
    assert keys[0] == keys[1] == keys[2] == keys[3]


def test_a_module_that_is_used_twice_has_its_first_name(record):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Mlp()
            self.b = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x)

    model = Twice()
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == ["a.first", "a", "a.second", "<model>", "<loop>"]
    assert [e.op_name for e in run.iter_events(site="a.first", op="aten.addmm")] == ["aten.addmm#0", "aten.addmm#1"]


def test_a_module_that_calls_itself_has_one_site(record):
    class Tree(nn.Linear):
        def forward(self, x: Tensor, depth: int = 3) -> Tensor:
            return super().forward(x) + (self(x, depth - 1) if depth else 0)

    model = Tree(3, 3)
    run = record(lambda: backward(model(X)))
    assert sites(run, phase="forward") == ["<model>", "<loop>"]
    assert len(list(run.iter_events(op="aten.addmm"))) == 4


def test_modules_that_hold_each_other_are_named(record):
    class Child(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    model = nn.Module()
    model.child = Child(3, 2)
    model.child.parent = model
    run = record(lambda: backward(model.child(X)))
    assert len(sites(run)) == 2
    assert len(names(run)) == 2


def test_a_tied_parameter_has_its_first_name(record):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(7, 3)
            self.head = nn.Linear(3, 7, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.tokens(ids))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        backward(model(torch.tensor([1, 2])))
        optimizer.step()

    run = record(training)
    assert names(run) == ["tokens.weight"]
    assert [e.parameter for e in run.iter_events(op="gradient")] == ["tokens.weight"]
    assert sites(run, op="aten.mm", phase="forward") == ["head"]


def test_a_layer_that_is_replaced_half_way_takes_over_the_name(record):
    model = Mlp()

    def training():
        for _ in range(2):
            backward(model(X))
            model.zero_grad()
            model.second = nn.Linear(5, 4)

    run = record(training)
    assert {(e.step, e.shape) for e in run.iter_events(op="parameter") if e.parameter == "second.weight"} == {
        (0, (2, 5)), (1, (4, 5)),
    }  # fmt: skip
    assert {(e.step, e.site) for e in run.iter_events(op="aten.addmm", site="second")} == {(0, "second"), (1, "second")}


def test_a_head_that_is_added_half_way_is_named(record):
    model = nn.Sequential(nn.Linear(3, 3))

    def training():
        backward(model(X))
        model.zero_grad()
        model.append(nn.Linear(3, 2))
        backward(model(X))

    assert [e.parameter for e in record(training).iter_events(op="parameter", step=1)] == [
        "0.weight", "0.bias", "1.weight", "1.bias",
    ]  # fmt: skip


def test_a_model_that_is_replaced_half_way_is_a_further_model(record):
    def training():
        for _ in range(2):
            model = Mlp()
            backward(model(X))
            model.zero_grad()
            del model
            gc.collect()

    run = record(training)
    assert sites(run, phase="forward", op="aten.addmm") == ["first", "second", "Mlp:first", "Mlp:second"]


def test_a_copy_of_the_model_is_another_model(record):
    model = Mlp()
    average = copy.deepcopy(model)

    def training():
        backward(model(X))
        with torch.no_grad():
            average(X)

    run = record(training)
    assert set(sites(run, phase="eval")) == {"Mlp:first", "Mlp:", "Mlp:second"}


def test_a_module_around_a_known_model_names_nothing_twice(record):
    class Loss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).sum() * self.scale

    model = Mlp()

    def training():
        backward(model(X))
        model.zero_grad()
        around = Loss(model)
        for _ in range(2):
            backward(around(X))
            around.zero_grad()

    run = record(training)
    assert [e.parameter for e in run.iter_events(op="parameter", step=2)] == [
        "first.weight", "first.bias", "second.weight", "second.bias", "Loss:scale",
    ]  # fmt: skip


def test_a_lazy_layer_is_named_when_it_has_its_parameters(record):
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 2))

    def training():
        for _ in range(2):
            backward(model(X))
            model.zero_grad()

    run = record(training)
    assert names(run)[-2:] == ["2.weight", "2.bias"]
    assert {e.parameter for e in run.iter_events(op="parameter", step=1)} == {
        "0.weight", "0.bias", "2.weight", "2.bias",
    }  # fmt: skip


def test_parametrized_weights_keep_their_names(record):
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    run = record(lambda: backward(model(X)))
    assert set(names(run)) == {
        "0.bias", "0.parametrizations.weight.original0", "0.parametrizations.weight.original1",
    }  # fmt: skip


def test_optimizer_ops_have_the_site_and_the_name_of_their_parameter(record):
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def training():
        for _ in range(2):
            optimizer.zero_grad()
            backward(model(X))
            optimizer.step()

    run = record(training)
    places = {(e.site, e.parameter) for e in run.iter_events(phase="optimizer", op="aten.addcdiv_")}
    assert places == {
        ("first", "first.weight"), ("first", "first.bias"), ("second", "second.weight"), ("second", "second.bias"),
    }  # fmt: skip


@pytest.mark.parametrize("option", ["foreach", "fused"])
@pytest.mark.parametrize("num_parameters", [1, 2])
def test_ops_on_lists_of_parameters_have_their_sites_too(record, option, num_parameters):
    model = nn.Sequential(nn.Linear(3, 2, bias=num_parameters == 2))
    optimizer = torch.optim.Adam(model.parameters(), **{option: True})

    def training():
        for _ in range(2):
            optimizer.zero_grad()
            backward(model(X))
            optimizer.step()

    run = record(training)
    lists = [e for e in run.iter_events(phase="optimizer") if e.op.startswith(("aten._foreach", "aten._fused"))]
    assert {e.step for e in lists} == {0, 1}
    assert {e.site for e in lists} == {"0"}
    assert {e.parameter for e in lists} == ({"0.weight", "0.bias"} if num_parameters == 2 else {"0.weight"})


def test_clipping_has_the_names_of_the_gradients_it_scales(record):
    model = Mlp()

    def training():
        backward(model(X))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=False)

    run = record(training)
    scaled = [(e.site, e.parameter) for e in run.iter_events(phase="optimizer", op="aten.mul_")]
    assert scaled == [
        ("first", "first.weight"), ("first", "first.bias"), ("second", "second.weight"), ("second", "second.bias"),
    ]  # fmt: skip


def test_double_backward_keeps_the_sites(record):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def training():
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()

    run = record(training)
    assert set(sites(run, phase="backward", op="aten.mm")) == {"0", "2"}
    assert set(sites(run, phase="backward", op="aten.tanh_backward")) == {"1"}


def test_names_do_not_keep_a_model_alive():
    named = Sites()
    named.add_model(Mlp())
    gc.collect()
    assert named.models == []
    assert list(named.parameters()) == []


def test_an_unknown_parameter_belongs_to_the_loop():
    assert Sites().of_parameter(torch.ones(2, requires_grad=True)) == (0, None)


def test_a_functional_call_is_named_like_the_module(record):
    model = Mlp()
    weights = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    run = record(lambda: backward(torch.func.functional_call(model, weights, (X,))))
    assert sites(run, phase="forward") == ["first", "<model>", "second", "<loop>"]


def test_the_loss_function_of_the_loop_is_the_loop(record):
    model = Mlp()
    run = record(lambda: F.mse_loss(model(X), torch.zeros(4, 2)).backward())
    assert sites(run, op="aten.mse_loss") == ["<loop>"]
    assert sites(run, op="aten.mse_loss_backward") == ["<loop>"]
