"""The switch `substitute`: what is chosen is computed otherwise, forward and backward, and nothing else changes."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundoff.errors import SwitchError
from roundoff.record import recording
from roundoff.runs import Run
from roundoff.switches import listing_ops, read_listing, switching
from roundoff.switches.op_listing import write_listing
from roundoff.switches.substitute import SubstituteWarning
from tests.record.trainings import PLAIN, Outcome, Training

FP64 = {"substitute": "fp64"}


def same(a: Outcome, b: Outcome) -> bool:
    return all(torch.equal(a.tensors[key].nan_to_num(), b.tensors[key].nan_to_num()) for key in a.tensors)


@pytest.mark.parametrize("training", PLAIN.values(), ids=PLAIN)
def test_without_chosen_ops_every_kind_of_training_stays_bit_for_bit_as_it_is(training: Training):
    plain = training()
    with switching({"substitute": "fp64", "substitute.ops": ""}):
        observed = training()
    assert plain.losses == pytest.approx(observed.losses, rel=0, abs=0, nan_ok=True)
    assert same(plain, observed)


@pytest.mark.parametrize("training", PLAIN.values(), ids=PLAIN)
def test_in_fp64_every_kind_of_training_agrees_within_its_format_and_draws_the_same_numbers(training: Training):
    plain = training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstituteWarning)
        with switching(FP64):
            substituted = training()
    assert plain.losses == pytest.approx(substituted.losses, rel=1e-4, nan_ok=True)
    assert torch.equal(plain.tensors["rng0"], substituted.tensors["rng0"])


# -- a model in which the site matters ---------------------------------------------------------------------------------


class Curved(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x)) + x


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), Curved(8), Curved(8), nn.Linear(8, 3))


X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def gradients(net: nn.Module, x: Tensor = X) -> list[Tensor]:
    net.zero_grad()
    F.cross_entropy(net(x), Y).backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


def function_module(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> dict[str, str]:
    """Make a function importable and return the switch that uses it."""
    module = types.ModuleType("users_implementations")
    module.function = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_implementations", module)
    return {"substitute": "users_implementations:function"}


def ops_seen(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any], ops: str | None = None) -> list[str]:
    """Return the ops for which a user's function is called, in their order."""
    seen: list[str] = []

    def function(op: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(op)
        return NotImplemented

    with switching({**function_module(monkeypatch, function), **({} if ops is None else {"substitute.ops": ops})}):
        run()
    return seen


def test_a_site_means_the_ops_of_its_own_code_in_forward_and_backward(monkeypatch: pytest.MonkeyPatch):
    net = model()
    seen = ops_seen(monkeypatch, lambda: gradients(net), "2")
    assert seen == ["aten.gelu", "aten.add", "aten.gelu_backward"]
    assert ops_seen(monkeypatch, lambda: gradients(net), "2:backward:aten.gelu*") == ["aten.gelu_backward"]
    assert ops_seen(monkeypatch, lambda: gradients(net), "2.linear:forward") == ["aten.addmm"]


def test_a_users_numbers_take_the_place_of_an_ops(monkeypatch: pytest.MonkeyPatch):
    def zero(op: str, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.zeros_like(x)

    net = model()
    seen: list[Tensor] = []
    net[1].register_forward_hook(lambda module, args, output: seen.append(output - args[0]))
    net[2].register_forward_hook(lambda module, args, output: seen.append(output - args[0]))
    with switching({**function_module(monkeypatch, zero), "substitute.ops": "2:forward:aten.gelu"}):
        gradients(net)
    assert seen[0].count_nonzero()
    assert not seen[1].count_nonzero()


def test_the_gradient_of_substituted_ops_is_right():
    net = model()
    exact = gradients(net.double(), X.double())
    net.float()
    with switching(FP64):
        found = gradients(net)
    for narrow, wide in zip(found, exact, strict=True):
        torch.testing.assert_close(narrow.double(), wide, rtol=1e-6, atol=1e-8)


def test_the_fp64_of_single_ops_is_closer_to_the_truth():
    torch.manual_seed(0)
    x = torch.randn(4, 4096)
    truth = x.double().softmax(-1).float()
    with switching(FP64):
        assert torch.equal(x.softmax(-1), truth)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_modules_are_substituted_when_they_are_computed_again(use_reentrant: bool):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: Tensor) -> Tensor:
            x = self.net[0](x)
            x = checkpoint(self.net[1], x, use_reentrant=use_reentrant)
            return self.net[3](self.net[2](x))

    with switching(FP64):
        plain = gradients(model())
        again = gradients(Checkpointed())
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_under_autocast_ops_keep_their_formats():
    def run() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return gradients(model())

    plain = run()
    with switching(FP64):
        substituted = run()
    for a, b in zip(plain, substituted, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.01)
    with switching(FP64), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model()(X).dtype == torch.bfloat16


@pytest.mark.slow
def test_a_compiled_model_runs_eagerly_and_is_substituted(monkeypatch: pytest.MonkeyPatch):
    torch.compiler.reset()  # what other tests compiled
    compiled = torch.compile(model(), backend="aot_eager")
    before = gradients(compiled)
    assert "aten.gelu_backward" in ops_seen(monkeypatch, lambda: gradients(compiled), "2")
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(compiled), strict=True))
    torch.compiler.reset()


def test_ops_of_another_thread_are_unchanged_and_cause_a_warning():
    def in_a_thread() -> None:
        thread = threading.Thread(target=gradients, args=(model(),))
        thread.start()
        thread.join(timeout=300)

    with pytest.warns(SubstituteWarning, match="another thread computed something"), switching(FP64):
        in_a_thread()


def test_a_backward_in_another_thread_ends_well():
    net = model()
    loss: list[Tensor] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstituteWarning)
        with switching(FP64):
            loss.append(F.cross_entropy(net(X), Y))
            thread = threading.Thread(target=loss[0].backward)
            thread.start()
            thread.join(timeout=300)
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_recording_sees_the_substituted_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def ones(op: str, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.ones_like(x) if op == "aten.gelu" else NotImplemented

    net = model()
    with switching(function_module(monkeypatch, ones)), recording(net, to=tmp_path / "run"):
        gradients(net)
    events = [event for event in Run.open(tmp_path / "run").events().to_list() if event["op"] == "aten.gelu"]
    assert [(event["min"], event["max"]) for event in events] == [(1.0, 1.0)] * 2


def fail_after(x: Tensor) -> None:
    raise ZeroDivisionError


def test_nothing_remains_changed_when_the_block_ends_by_an_exception():
    net = model()
    plain = gradients(net)
    with pytest.raises(ZeroDivisionError), switching(FP64):
        fail_after(net(X))
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients(net), strict=True))
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0


# -- operators with a gradient of their own ----------------------------------------------------------------------------


@pytest.fixture
def squared() -> Iterator[Callable[[Tensor], Tensor]]:
    """An operator that computes x * x and whose registered gradient is wrong: x instead of 2 * x."""

    @torch.library.custom_op("roundoff_substitute_test::squared", mutates_args=())
    def squared(x: Tensor) -> Tensor:
        return x * x

    def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]

    squared.register_autograd(backward, setup_context=keep)
    yield squared
    squared._lib._destroy()


class Squaring(nn.Module):
    def __init__(self, squared: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.squared = squared

    def forward(self, x: Tensor) -> Tensor:
        return self.squared(self.linear(x))


def test_a_wrong_gradient_formula_is_found_with_a_users_function(
    squared: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
):
    from roundoff.experiments.bisect.smallest import smallest_wide

    def right(op: str, *args: Any, **kwargs: Any) -> Any:
        return args[0] ** 2 if op == "roundoff_substitute_test.squared" else NotImplemented

    def gradient_of_input() -> Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(Squaring(lambda x: x * x), Squaring(squared), Squaring(lambda x: x * x))
        x = torch.randn(8, 4, requires_grad=True)
        net(x).sum().backward()
        assert x.grad is not None
        return x.grad

    switch = function_module(monkeypatch, right)
    with switching(switch):
        good = gradient_of_input()
    assert not torch.allclose(good, gradient_of_input())

    def is_good(keys: frozenset[str]) -> bool:
        with switching({**switch, "substitute.ops": ",".join(sorted(keys))}):
            return torch.allclose(good, gradient_of_input())

    with listing_ops() as listed:
        gradient_of_input()
    found = smallest_wide(listed.keys, is_good)
    assert found.sites == ("1:forward:roundoff_substitute_test.squared",)
    assert found.num_runs <= 8


def test_an_operator_that_runs_its_own_kernel_in_fp64_too_causes_a_warning(squared: Callable[[Tensor], Tensor]):
    net = nn.Sequential(Squaring(squared), Squaring(squared), nn.Linear(4, 1))
    with pytest.warns(SubstituteWarning) as warned, switching(FP64):
        net(torch.randn(8, 4)).sum().backward()
    assert str(warned[0].message) == (
        "Not everything was substituted:\n"
        "  roundoff_substitute_test.squared ran the same kernel in fp64 (2x): an error in it or in its gradient "
        "formula stays; name another implementation, substitute=module:function."
    )


def test_an_operator_that_was_not_chosen_or_has_another_implementation_causes_none(
    squared: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
):
    def right(op: str, *args: Any, **kwargs: Any) -> Any:
        return args[0] ** 2 if op == "roundoff_substitute_test.squared" else NotImplemented

    net = nn.Sequential(Squaring(squared), nn.Linear(4, 1))
    for switches in ({**FP64, "substitute.ops": "1"}, function_module(monkeypatch, right)):
        with switching(switches):
            net(torch.randn(8, 4)).sum().backward()


@pytest.mark.parametrize(
    ("by", "own_kernels"),
    [
        ("fp64", ("roundoff_substitute_test.squared",)),
        ("decomposed", ("roundoff_substitute_test.squared",)),
        ("cpu", ()),
        (None, ()),
    ],
)
def test_a_listing_names_the_operators_whose_own_kernels_are_not_replaced(
    squared: Callable[[Tensor], Tensor], by: str | None, own_kernels: tuple[str, ...], tmp_path: Path
):
    net = nn.Sequential(Squaring(squared), nn.Linear(4, 1))
    with listing_ops(by=by, on_done=lambda listing: write_listing(listing, tmp_path / "ops.json")) as listed:
        net(torch.randn(8, 4)).sum().backward()
    assert "0:forward:roundoff_substitute_test.squared" in listed.keys
    assert read_listing(tmp_path / "ops.json").own_kernels == own_kernels


def test_inside_a_users_function_ops_run_as_they_are(
    squared: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    def by_itself(op: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(op)
        return squared(*args) + 1

    x = torch.ones(3)
    with switching({**function_module(monkeypatch, by_itself), "substitute.ops": "*:*:roundoff*"}):
        assert squared(x).tolist() == [2.0, 2.0, 2.0]
    assert seen == ["roundoff_substitute_test.squared"]


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_an_op_that_the_other_implementation_does_not_have_runs_as_it_is_and_is_counted():
    x, places = torch.randn(3, 4), torch.zeros(3, 1, dtype=torch.int64)
    switches = {"substitute": "decomposed", "substitute.ops": "*:*:aten.gather"}
    with pytest.warns(SubstituteWarning) as warned, switching(switches):
        found = [x.gather(1, places), x.gather(1, places + 1)]
    assert torch.equal(found[1], x[:, 1:2])
    assert str(warned[0].message) == (
        "Not everything was substituted:\n  aten.gather was not substituted (2x): torch has no decomposition of it."
    )


def test_a_key_that_names_nothing_causes_a_warning():
    switches = {"substitute": "fp64", "substitute.ops": "blocks.7,*:forward"}
    with pytest.warns(SubstituteWarning, match="no op matched 'blocks.7'"), switching(switches):
        model()(X)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("fp46", "There is no implementation 'fp46'."),
        ("no_such_module:function", "The function 'no_such_module:function' cannot be found."),
        ("math:no_such_function", "The function 'math:no_such_function' cannot be found."),
        ("math:pi", "'math:pi' is not a function."),
    ],
)
def test_an_implementation_that_does_not_exist_is_an_error(value: str, text: str):
    with pytest.raises(SwitchError) as caught, switching({"substitute": value}):
        pass
    assert str(caught.value).startswith(text)
