"""Single ops of every shape: in place, into `out`, on lists, with views, with statistics, at random, sparse."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from roundoff.record.ops.interceptor import OpInterceptor
from roundoff.record.ops.op_table import OpInfo
from roundoff.record.reference.op_call import OpCall
from roundoff.switches.implementations import Results, implementation_named, in_fp64
from roundoff.switches.substitute import ChosenOps, Substituter


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shifted(call: OpCall, info: OpInfo) -> Results:
    """An implementation that shows: everything that it computes is larger by 1."""
    right = in_fp64(call, info)
    written = [x for x in right.written if all(x is not y for y in right.returned)]
    for x in (*right.returned, *written):
        x.add_(1)
    return right


def substituted(run: Callable[[], Any], implementation: Any = shifted) -> tuple[Any, Substituter]:
    substituter = Substituter(implementation, ChosenOps(None))
    with OpInterceptor(substituter).running():
        result = run()
    return result, substituter


def test_what_an_op_returns_is_replaced():
    x = numbers(4)
    result, substituter = substituted(lambda: torch.exp(x))
    torch.testing.assert_close(result, torch.exp(x) + 1)
    assert substituter.num_substituted == 1


def test_an_op_in_place_writes_the_other_numbers_into_its_argument():
    x = numbers(4)
    expected = x * 3 + 1
    result, _ = substituted(lambda: x.mul_(3))
    assert result is x
    torch.testing.assert_close(x, expected)


def test_a_tensor_that_is_read_through_another_view_is_read_as_it_was():
    x = numbers(4)
    expected = x + x.flip(0) + 1
    x_as_it_was = x.clone()
    substituted(lambda: x.view(2, 2).add_(x.flip(0).view(2, 2)))  # the flip is a copy, larger by 1
    torch.testing.assert_close(x, expected + 1)
    assert not torch.equal(x, x_as_it_was)


def test_an_op_with_out_writes_the_other_numbers_there():
    x, out = numbers(4), torch.empty(4)
    result, _ = substituted(lambda: torch.exp(x, out=out))
    assert result is out
    torch.testing.assert_close(out, torch.exp(x) + 1)


def test_ops_on_lists_of_tensors_are_replaced_one_by_one():
    xs = [numbers(3), numbers(2, 2, seed=1)]
    expected = [x + 2 + 1 for x in xs]
    substituted(lambda: torch._foreach_add_(xs, 2.0))
    for x, right in zip(xs, expected, strict=True):
        torch.testing.assert_close(x, right)
    added, _ = substituted(lambda: torch._foreach_mul(xs, 2.0))
    torch.testing.assert_close(added[1], xs[1] * 2 + 1)


def test_views_of_an_argument_and_memory_layout_stay_as_they_are():
    x = numbers(2, 3, 4, 4).to(memory_format=torch.channels_last)
    view, substituter = substituted(lambda: x.transpose(0, 1))
    assert view.data_ptr() == x.data_ptr()
    assert substituter.num_substituted == 0
    result, _ = substituted(lambda: F.relu(x))
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, F.relu(x) + 1)


def test_the_statistics_of_a_norm_are_replaced_too():
    x, mean, variance = numbers(8, 3), torch.zeros(3), torch.ones(3)
    right_mean, right_variance = mean.clone(), variance.clone()
    F.batch_norm(x, right_mean, right_variance, training=True)
    substituted(lambda: F.batch_norm(x, mean, variance, training=True))
    torch.testing.assert_close(mean, right_mean + 1)
    torch.testing.assert_close(variance, right_variance + 1)


def test_random_ops_are_never_substituted():
    def draw() -> list[Tensor]:
        torch.manual_seed(0)
        q = numbers(1, 2, 4, 8)
        attended = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        return [torch.rand(3), F.dropout(torch.ones(9)), torch.zeros(3).normal_(), torch.randperm(5), attended]

    torch.manual_seed(0)
    for implementation in ("fp64", "decomposed"):
        drawn, substituter = substituted(draw, implementation_named(implementation))
        for found_here, plain in zip(drawn, draw(), strict=True):
            torch.testing.assert_close(found_here, plain)
        assert "aten.rand" not in substituter.num_left


def test_whole_numbers_and_fp64_have_nothing_to_substitute():
    _, substituter = substituted(lambda: (torch.arange(4) + 1, numbers(3).double().exp_()), in_fp64)
    assert not substituter.num_left
    assert substituter.num_substituted == 1  # the cast


def test_a_comparison_and_the_places_of_the_largest_are_replaced():
    def negated(call: OpCall, info: OpInfo) -> Results:
        right = in_fp64(call, info)
        return Results(
            returned=[x.logical_not() if x.dtype == torch.bool else x * 0 for x in right.returned], written=[]
        )

    x = numbers(5)
    result, _ = substituted(lambda: (x > 0, x.max(0)), negated)
    assert torch.equal(result[0], ~(x > 0))
    assert int(result[1].indices) == 0


def test_sparse_tensors_run_as_they_are_and_are_counted():
    x = numbers(3, 3).to_sparse()
    _, substituter = substituted(lambda: x @ numbers(3, 3, seed=1))
    assert "sparse" in "".join(substituter.reasons.values())


def test_a_wrong_shape_is_refused_before_anything_is_overwritten():
    x = numbers(3)
    result, substituter = substituted(
        lambda: x.exp(), lambda call, info: Results(returned=[torch.zeros(4)], written=[])
    )
    assert torch.equal(result, x.exp())
    assert substituter.reasons == {"aten.exp": "the other implementation returns a result of shape (4,), not (3,)."}


def test_a_failing_implementation_leaves_the_op_and_is_counted():
    def fail(call: OpCall, info: OpInfo) -> Results:
        raise RuntimeError("not for this device\nand a stack")

    x = numbers(3)
    result, substituter = substituted(lambda: x.exp(), fail)
    assert torch.equal(result, x.exp())
    assert substituter.num_left["aten.exp"] == 1
    assert substituter.reasons["aten.exp"] == "not for this device"


def test_versions_and_graphs_are_those_of_the_op_itself():
    x = numbers(4).requires_grad_()
    y = (x * 2).sigmoid()
    plain = y._version
    result, _ = substituted(lambda: (x * 2).sigmoid(), in_fp64)
    assert result._version == plain
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * (y * (1 - y)).detach())


def test_without_gradients_and_in_inference_mode_ops_are_substituted_too():
    x = numbers(4)

    def infer() -> Tensor:
        with torch.inference_mode():
            return torch.linalg.vector_norm(x.exp()).clone()

    result, substituter = substituted(infer)
    assert result.item() > torch.linalg.vector_norm(x.exp()).item() + 1
    assert substituter.num_substituted >= 2


@pytest.mark.parametrize("implementation", ["fp64", "decomposed"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x, approximate="tanh").sum(),
        lambda x: F.layer_norm(x, (6,), x[0], x[1]).square().sum(),
        lambda x: F.group_norm(x.view(4, 6, 1), 2).square().sum(),
        lambda x: F.batch_norm(x, None, None, training=True).square().sum(),
        lambda x: F.conv1d(x[None], x.view(2, 4, 3), padding=1).square().sum(),
        lambda x: F.conv2d(x[None, None], x.view(2, 1, 4, 3), groups=1).sum(),
        lambda x: F.max_pool1d(x, 2).sum(),
        lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 4, 3) * i for i in (1, 2, 3)], is_causal=True).sum(),
        lambda x: F.embedding(torch.tensor([1, 1, 3]), x).prod(),
        lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
        lambda x: torch.logsumexp(x @ x.t(), 1).sum(),
        lambda x: torch.cat([x, x * 2]).cumsum(0).std(),
        lambda x: torch.linalg.solve(x[:4, :4], x).sum(),
        lambda x: x.sort(-1).values[:, :2].log1p().nansum(),
    ],
)
def test_gradients_through_substituted_ops_agree_with_fp64(function: Callable[[Tensor], Tensor], implementation: str):
    x = (numbers(4, 6).abs() + 0.5).requires_grad_()
    wide = x.detach().double().requires_grad_()
    function(wide).backward()

    def run() -> None:
        function(x).backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        substituted(run, implementation_named(implementation))
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)
