"""The error an op introduces: small for healthy ops, exact for planted ones, and nothing is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.record.ops.op_table import describe_op, written_arguments
from roundoff.record.reference import IntroducedError, Reference, ReferenceKind
from roundoff.record.reference.exact_rerun import has_something_to_judge
from roundoff.record.reference.op_call import list_tensors
from roundoff.torch_private import DispatchMode
from tests.record.trainings import PLAIN, Training

aten = torch.ops.aten
FP32_EPS = torch.finfo(torch.float32).eps
ONE_PER_MILLE = 0.001 / FP32_EPS  # 8389 ulps
FORMATS = (torch.float32, torch.bfloat16, torch.float16)


class Judging(DispatchMode):
    """Runs every op as it is and judges it; what the recorder does, without the recording."""

    def __init__(self, kind: ReferenceKind = "fp64") -> None:
        super().__init__()
        self.reference = Reference(kind)
        self.found: list[tuple[str, list[IntroducedError | None]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        saved = self.reference.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if saved is not None:
            written = written_arguments(func, describe_op(func), args, kwargs)
            outputs = written if result is None else list_tensors(result)
            self.found.append((str(func), self.reference.after(saved, func, args, kwargs, outputs)))
        return result

    def worst(self) -> dict[str, float]:
        """Return the largest error of each op."""
        worst: dict[str, float] = {}
        for op, errors in self.found:
            for error in errors:
                if error is not None:
                    worst[op] = max(worst.get(op, 0.0), error.max_ulps)
        return worst


class Counting(DispatchMode):
    """Only runs every op as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def judging(kind: ReferenceKind = "fp64") -> Iterator[Judging]:
    mode = Judging(kind)
    with mode:
        yield mode


def introduced(op: Any, *args: Any, spoil: Callable[[Tensor], Any] | None = None, **kwargs: Any) -> list[Any]:
    """Run an op, change its results if requested, and return the error found in each of them."""
    reference = Reference("fp64")
    saved = reference.before(op, args, kwargs)
    result = op(*args, **kwargs)
    outputs = written_arguments(op, describe_op(op), args, kwargs) if result is None else list_tensors(result)
    if saved is None:
        return [None] * len(outputs)
    if spoil is not None:
        for output in outputs:
            spoil(output)
    found = reference.after(saved, op, args, kwargs, outputs)
    assert reference.not_judged == {}
    return found


def max_ulps(op: Any, *args: Any, **kwargs: Any) -> float:
    """Return the error of the first result."""
    return float(introduced(op, *args, **kwargs)[0].max_ulps)


def times_1001(x: Tensor) -> None:
    x.mul_(1.001)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return values of every size from 1/16 to 16."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-4, 5, shape, generator=generator)
    return (torch.randn(shape, generator=generator) * 2.0**exponents).to(dtype)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


# -- healthy ops ------------------------------------------------------------------------------------------------------

SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: x.view(-1, 64) @ x.view(64, -1),
    "linear with bias": lambda x: F.linear(x.view(-1, 64), x[:640].view(10, 64), x[:10]),
    "bmm": lambda x: torch.einsum("bij,bkj->bik", x.view(8, -1, 16), x.view(8, -1, 16)),
    "convolution": lambda x: F.conv2d(x.view(-1, 16, 8, 8), x[:1152].view(8, 16, 3, 3), x[:8], padding=1),
    "strided, dilated": lambda x: F.conv2d(x.view(-1, 16, 8, 8), x[:1152].view(8, 16, 3, 3), stride=2, dilation=2),
    "depthwise": lambda x: F.conv2d(x.view(-1, 16, 8, 8), x[:144].view(16, 1, 3, 3), groups=16),
    "transposed": lambda x: F.conv_transpose2d(x.view(-1, 16, 8, 8), x[:576].view(16, 4, 3, 3), stride=2),
    "one-dimensional": lambda x: F.conv1d(x.view(-1, 16, 16), x[:384].view(8, 16, 3)),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.view(-1, 64).mean(0),
    "average pooling": lambda x: F.avg_pool2d(x.view(-1, 4, 16, 16), 3, 2, 1),
    "interpolation": lambda x: F.interpolate(x.view(-1, 4, 16, 16), scale_factor=2, mode="bilinear"),
    "layer norm": lambda x: F.layer_norm(x.view(-1, 64), (64,), x[:64], x[64:128]),
    "rms norm": lambda x: F.rms_norm(x.view(-1, 64), (64,), x[:64]),
    "group norm": lambda x: F.group_norm(x.view(-1, 16, 8), 4, x[:16], x[16:32]),
    "batch norm": lambda x: F.batch_norm(x.view(-1, 16, 8), None, None, training=True),
    "softmax": lambda x: x.view(-1, 64).softmax(-1),
    "softmax of rows": lambda x: x.view(-1, 64).softmax(0),
    "cross entropy": lambda x: F.cross_entropy(x.view(-1, 64), torch.arange(len(x) // 64) % 64),
    "attention": lambda x: attend(*x.view(3, 2, 2, -1, 16)),
}
ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "reciprocal": torch.reciprocal,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "pow": lambda x: x**3,
    "multiply": lambda x: x * x.flip(0),
    "divide": lambda x: x / 3,
    "subtract": lambda x: x - x.flip(0),
    "subtract from": lambda x: torch.rsub(x, 1.5, alpha=0.3),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "log sigmoid": F.logsigmoid,
    "elu": F.elu,
    "selu": F.selu,
    "leaky relu in place": lambda x: F.leaky_relu_(x * 1),
    "gated": lambda x: F.glu(x.view(-1, 2)),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
    "mean squared": lambda x: F.mse_loss(x, x.flip(0)),
}


def forward_and_backward(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Judging:
    x = numbers(6144, dtype=dtype).requires_grad_()
    with judging() as found:
        y = function(x)
        y.backward(numbers(*y.shape, dtype=y.dtype, seed=1))
    assert found.reference.not_judged == {}
    assert found.worst()
    return found


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_products_are_a_few_ulps_of_their_terms_off(name: str, dtype: torch.dtype) -> None:
    # kernels add in blocks of fp32, so the error grows with the root of the length; 16-bit results are rounded once;
    # softmax over other dimensions than the last takes an exp that is good to 20 ulps only
    worst = forward_and_backward(SUMS[name], dtype).worst()
    assert max(worst.values()) <= (20 if name == "softmax of rows" else 8), worst


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions_are_an_ulp_or_two_off(name: str, dtype: torch.dtype) -> None:
    worst = forward_and_backward(ELEMENTWISE[name], dtype).worst()
    assert max(worst.values()) <= 4, worst


def test_an_exactly_rounded_result_has_at_most_half_an_ulp() -> None:
    x, y = numbers(1000), numbers(1000, seed=1)
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor):
        assert 0.4 < max_ulps(op, x, y) <= 0.5
    error = introduced(aten.mul.Tensor, x, y)[0]
    assert 0.1 < error.rms_ulps < 0.3


def test_cancellation_is_not_blamed_on_the_op() -> None:
    x = numbers(1000)
    y = x * (1 + 3 * FP32_EPS)
    assert max_ulps(aten.sub.Tensor, x, y, alpha=0.7) <= 1
    assert max_ulps(aten.add.Tensor, x, -y, alpha=0.7) <= 1
    assert max_ulps(aten.mm.default, torch.stack([x, -x], 1), torch.stack([y, x], 0)) <= 1
    assert max_ulps(aten.sum.default, torch.cat([x, -y])) <= 1


def test_a_mean_far_larger_than_the_spread_is_not_blamed_on_a_norm() -> None:
    def far(norm: nn.Module, *shape: int) -> dict[str, float]:
        x = (numbers(*shape) / 16 + 1000).requires_grad_()
        with judging() as found:
            norm(x).backward(numbers(*shape, seed=1))
        return found.worst()

    for worst in (far(nn.LayerNorm(64), 32, 64), far(nn.GroupNorm(2, 8), 8, 8, 16), far(nn.BatchNorm1d(8), 8, 8, 16)):
        assert max(worst.values()) <= 8, worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peaked_attention_is_not_blamed(dtype: torch.dtype) -> None:
    q, k, v = (numbers(2, 2, 32, 16, dtype=dtype, seed=i).requires_grad_() for i in range(3))
    mask = torch.rand(32, 32) > 0.3
    with judging() as found:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(dtype)).sum().backward()
    assert max(found.worst().values()) <= 8, found.worst()
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in found.worst()


def test_casts_round_once() -> None:
    x = numbers(1000)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        assert 0.4 < max_ulps(aten._to_copy.default, x, dtype=dtype) <= 0.5
        assert 0.4 < max_ulps(aten.copy_.default, torch.empty(2, 1000, dtype=dtype), x) <= 0.5
    assert max_ulps(aten.clone.default, x, memory_format=torch.contiguous_format) == 0
    assert 0.4 < max_ulps(aten._to_copy.default, torch.arange(3000), dtype=torch.float16) <= 0.5


# -- planted errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.mul.Tensor, (numbers(100), numbers(100, seed=1))),
        (aten.exp.default, (numbers(100),)),
        (aten.sum.dim_IntList, (numbers(50, 20).abs(), [1])),
        (aten.mm.default, (numbers(20, 30).abs(), numbers(30, 20).abs())),
        (aten.convolution.default,
         (numbers(2, 3, 8, 8).abs(), numbers(4, 3, 3, 3).abs(), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
        (aten._softmax.default, (numbers(10, 20), -1, False)),
        (aten.embedding.default, (numbers(10, 20), torch.arange(10))),
        (aten.sqrt.default, (numbers(100).abs(),)),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_result_that_is_one_per_mille_off_has_a_large_error(op: Any, args: tuple[Any, ...]) -> None:
    assert max_ulps(op, *args, spoil=times_1001) == pytest.approx(ONE_PER_MILLE, rel=0.01)


def test_a_custom_op_that_is_wrong_in_one_format_has_a_large_error() -> None:
    @torch.library.custom_op("roundoff_test::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * (2.002 if x.dtype == torch.float32 else 2)

    found = max_ulps(torch.ops.roundoff_test.doubled.default, numbers(10, 20))
    assert found == pytest.approx(ONE_PER_MILLE, rel=0.01)


def test_one_wrong_bit_in_a_large_tensor_is_found_wherever_it_is() -> None:
    for shape, place in (((300_000,), 299_999), ((3, 70_000), 70_001), ((2, 300, 400), 0), ((500, 400), 123_456)):
        x = numbers(*shape)

        def spoil(y: Tensor, place: int = place) -> None:
            y.view(-1)[place] *= 1 + 16 * FP32_EPS

        assert max_ulps(aten.mul.Scalar, x, 2.0, spoil=spoil) == pytest.approx(16, abs=1)
        row = torch.ones_like(x[..., :1])  # broadcast, so that the parts are no flat stretches of memory
        assert max_ulps(aten.mul.Tensor, x, row, spoil=spoil) == pytest.approx(16, abs=1)


def test_the_mean_square_counts_every_element() -> None:
    def spoil(y: Tensor) -> None:
        y[:50_000] *= 1 + 16 * FP32_EPS

    error = introduced(aten.mul.Scalar, torch.ones(200_000), 2.0, spoil=spoil)[0]
    assert error.rms_ulps == pytest.approx(16 / 2)


# -- ops that overwrite their arguments -------------------------------------------------------------------------------

IN_PLACE: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add_.Tensor, (numbers(50), numbers(50, seed=1)), {"alpha": -0.3}),
    (aten.mul_.Tensor, (numbers(50), numbers(50, seed=1)), {}),
    (aten.addcdiv_.default, (numbers(50), numbers(50, seed=1), numbers(50, seed=2)), {"value": -0.1}),
    (aten.lerp_.Scalar, (numbers(50), numbers(50, seed=1), 0.1), {}),
    (aten.addmm_.default, (numbers(8, 8), numbers(8, 8, seed=1), numbers(8, 8, seed=2)), {"beta": 0.5}),
    (aten.index_add_.default, (numbers(8, 8), 0, torch.tensor([1, 1]), numbers(2, 8, seed=1)), {}),
    (aten.add.out, (numbers(50), numbers(50, seed=1)), {"out": torch.empty(50)}),
    (aten.mm.out, (numbers(8, 8), numbers(8, 8, seed=1)), {"out": torch.empty(0)}),
    (aten._foreach_add_.List, ([numbers(50), numbers(3)], [numbers(50, seed=1), numbers(3, seed=1)]), {"alpha": 2}),
    (aten._foreach_sub_.Scalar, ([numbers(50), numbers(3)], 0.3), {}),
    (aten._foreach_lerp_.Scalar, ([numbers(50), numbers(3)], [numbers(50, seed=1), numbers(3, seed=1)], 0.1), {}),
    (aten._foreach_mul_.Tensor, ([numbers(50), numbers(3)], torch.tensor(0.3)), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), IN_PLACE, ids=[str(case[0]) for case in IN_PLACE])
def test_ops_that_overwrite_are_judged_by_what_was_there_before(op: Any, args: Any, kwargs: Any) -> None:
    def fresh(value: Any) -> Any:
        return [v.clone() for v in value] if isinstance(value, list) else value.clone() if is_tensor(value) else value

    is_tensor = torch.is_tensor
    copies = [tuple(map(fresh, args)) for _ in range(2)]
    healthy = introduced(op, *copies[0], **kwargs)
    spoiled = introduced(op, *copies[1], **kwargs, spoil=times_1001)
    assert all(error.max_ulps <= 2 for error in healthy)
    assert all(300 < error.max_ulps < 1.1 * ONE_PER_MILLE for error in spoiled)


def test_a_tensor_added_to_itself_is_doubled() -> None:
    x = numbers(50)
    assert max_ulps(aten.add_.Tensor, x, x) == 0
    assert max_ulps(aten.add_.Tensor, x, x.view(50)) == 0
    assert max_ulps(aten.mul_.Tensor, x, x.detach()) <= 0.5
    assert max_ulps(aten.add.out, x, x, out=x) == 0
    assert max_ulps(aten.add_.Tensor, x[::2], x[1::2]) <= 0.5
    large = numbers(200_000)
    assert max_ulps(aten.add_.Tensor, large, large) == 0


def test_copies_of_lists_are_judged_like_single_ones() -> None:
    x = numbers(1000)
    (one,) = introduced(aten.copy_.default, torch.empty(1000, dtype=torch.bfloat16), x)
    assert introduced(aten._foreach_copy_.default, [torch.empty(1000, dtype=torch.bfloat16)], [x]) == [one]
    assert one is not None


def test_written_tensors_that_may_overlap_are_left_unjudged() -> None:
    x = numbers(10)
    assert introduced(aten._foreach_add_.Scalar, [x, x], 1) == [None, None]
    assert introduced(aten._foreach_add_.Scalar, [x[:6], x[4:]], 1) == [None, None]
    assert None not in introduced(aten._foreach_add_.Scalar, [x[:5], x[5:]], 1)


@pytest.mark.parametrize("scaled", [False, True])
def test_fused_optimizers_are_judged(scaled: bool) -> None:
    parameters, grads, averages = ([numbers(20, seed=i), numbers(4, 5, seed=i)] for i in range(3))
    scaling: dict[str, Any] = {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(0.0)} if scaled else {}
    found = introduced(
        aten._fused_adamw_.default, parameters, grads, averages, [a.square() for a in averages], [],
        [torch.tensor(3.0), torch.tensor(3.0)], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8,
        amsgrad=False, maximize=False, **scaling,
    )  # fmt: skip
    assert len(found) == 8
    assert all(error.max_ulps <= 4 for error in found)


# -- range ------------------------------------------------------------------------------------------------------------


def test_overflow_is_not_rounding() -> None:
    large = torch.tensor([60000.0, -60000.0, 100.0], dtype=torch.float16)
    assert max_ulps(aten.mul.Scalar, large, 2.0) == 0
    assert max_ulps(aten._to_copy.default, large.float() * 1000, dtype=torch.float16) <= 0.5
    assert max_ulps(aten._to_copy.default, large.float() * 1000, dtype=torch.float8_e4m3fn) <= 0.5
    assert max_ulps(aten.log.default, torch.tensor([0.0, -1.0, 1.0])) == 0
    masked = torch.full((4, 4), -torch.inf).triu(1)
    assert max_ulps(aten._softmax.default, masked, -1, False) <= 1
    assert max_ulps(aten._log_softmax.default, masked, -1, False) <= 1


def put(value: float, x: Tensor) -> None:
    x.view(-1)[3] = value


def test_infinity_or_nan_where_a_number_belongs_is_infinitely_wrong() -> None:
    x = numbers(100, dtype=torch.float16)
    for wrong in (math.inf, math.nan):
        error = introduced(aten.mul.Scalar, x, 2.0, spoil=partial(put, wrong))[0]
        assert error.max_ulps == math.inf
        assert error.rms_ulps == math.inf
    large = torch.full((4,), 60000.0, dtype=torch.float16)
    assert max_ulps(aten.mul.Scalar, large, 2.0, spoil=lambda y: y.neg_()) == math.inf
    assert max_ulps(aten.mul.Scalar, large, 2.0, spoil=lambda y: y.fill_(math.nan)) == math.inf
    assert max_ulps(aten.log.default, -torch.ones(2), spoil=lambda y: y.fill_(1.0)) == math.inf


def test_products_that_overflow_in_fp32_are_judged_in_fp64() -> None:
    row = torch.tensor([[3e38, -3e38, 1.0]], dtype=torch.bfloat16)
    column = torch.tensor([[2.0], [2.0], [1.0]], dtype=torch.bfloat16)
    assert max_ulps(aten.mm.default, row, column) == math.inf  # 1 in fp64, inf - inf in the kernel


def test_underflow_counts_as_the_rounding_it_is() -> None:
    small = numbers(1000, dtype=torch.float16) * 2**-14
    assert 0.4 < max_ulps(aten.mul.Scalar, small, 2**-8) <= 0.5
    assert max_ulps(aten.mul.Scalar, numbers(1000), 1e-42) <= 0.5
    zeros = introduced(aten.mul.Scalar, numbers(1000), 1e-42, spoil=lambda y: y.zero_())[0]
    assert zeros.max_ulps <= 1  # many kernels have no subnormals in fp32
    assert max_ulps(aten.mul.Scalar, small, 2**-8, spoil=lambda y: y.zero_()) > 100  # but they have in fp16


# -- what cannot be judged --------------------------------------------------------------------------------------------


def test_ops_with_nothing_to_judge_are_passed_over_in_silence() -> None:
    x = numbers(6, 4)
    for op, args in (
        (aten.view.default, (x, [24])),
        (aten.detach.default, (x,)),
        (aten.gt.Scalar, (x, 0)),
        (aten.argmax.default, (x,)),
        (aten.empty_like.default, (x,)),
        (aten.zero_.default, (x.clone(),)),
        (aten.bernoulli.default, (x.abs().clamp(0, 1),)),
        (aten.native_dropout.default, (x, 0.5, True)),
        (aten.arange.default, (5,)),
        (aten.add.Tensor, (x.double(), x.double())),
        (aten.mul.Tensor, (torch.empty(0), torch.empty(0))),
        (aten.linalg_inv_ex.default, (x[:4],)),
        (aten.div.Tensor_mode, (x, x)),
    ):
        kwargs: dict[str, Any] = {"rounding_mode": "floor"} if op is aten.div.Tensor_mode else {}
        assert not any(introduced(op, *args, **kwargs)), op
    with judging() as found:
        F.scaled_dot_product_attention(x.view(1, 1, 6, 4), x.view(1, 1, 6, 4), x.view(1, 1, 6, 4), dropout_p=0.5)
    assert found.reference.not_judged == {}


@pytest.mark.parametrize(
    ("op", "judged"),
    [
        (aten.gelu_backward.default, True),
        (aten.silu_backward.default, True),
        (aten.relu_.default, True),
        (aten._prelu_kernel_backward.default, True),
        (aten._weight_norm_interface.default, True),
        (aten.lu_unpack.default, False),
        (aten._lu_with_info.default, False),
        (aten._linalg_eigh.default, False),
        (aten.cholesky_solve.default, False),
    ],
    ids=str,
)
def test_activations_are_not_taken_for_decompositions_because_of_their_names(op: Any, judged: bool) -> None:
    assert has_something_to_judge(op) is judged


def test_some_results_of_an_op_can_be_judged_and_others_not() -> None:
    values, indices = introduced(aten.max.dim, numbers(6, 4), 1)
    assert values.max_ulps == 0
    assert indices is None


def test_an_op_that_cannot_run_again_is_listed_and_left_alone() -> None:
    runs = []

    @torch.library.custom_op("roundoff_test::fp32_only", mutates_args=())
    def fp32_only(x: Tensor) -> Tensor:
        runs.append(x.dtype)
        if x.dtype != torch.float32:
            raise NotImplementedError("no kernel for Double\nand a second line")
        return x.clone()

    op, x, reference = torch.ops.roundoff_test.fp32_only.default, numbers(5), Reference("fp64")
    saved = reference.before(op, (x,), {})
    assert saved is not None
    assert reference.after(saved, op, (x,), {}, [x]) == [None]
    assert reference.not_judged == {"roundoff_test.fp32_only": "no kernel for Double"}
    assert reference.before(op, (x,), {}) is None
    assert runs == [torch.float64]


# -- nothing is touched -----------------------------------------------------------------------------------------------


def test_random_numbers_stay_in_place_even_where_an_op_does_not_say_that_it_draws_some() -> None:
    @torch.library.custom_op("roundoff_test::noisy", mutates_args=())
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    torch.manual_seed(0)
    noisy(numbers(5))
    expected = torch.rand(3)
    torch.manual_seed(0)
    with judging() as found:
        noisy(numbers(5))
    assert torch.equal(torch.rand(3), expected)
    assert found.reference.not_judged == {"roundoff_test.noisy": "it draws random numbers"}


def test_batch_norm_keeps_its_statistics_also_in_fp64() -> None:
    kinds: tuple[ReferenceKind, ...] = ("fp64", "cpu")
    for dtype in (torch.float32, torch.float64):
        for kind in kinds:
            plain, judged = (nn.BatchNorm1d(4, dtype=dtype) for _ in range(2))
            x = numbers(8, 4, dtype=dtype)
            plain(x)
            with judging(kind):
                judged(x)
            assert torch.equal(plain.get_buffer("running_var"), judged.get_buffer("running_var"))


def test_versions_of_tensors_stay_as_they_are() -> None:
    def versions() -> list[int]:
        tensors = [numbers(50) for _ in range(3)]
        tensors[0].add_(tensors[1])
        tensors[0].copy_(tensors[2])
        torch._foreach_mul_(tensors, 2.0)
        torch.add(tensors[0], tensors[1], out=tensors[2])
        return [tensor._version for tensor in tensors]

    with judging():
        judged = versions()
    with Counting():
        assert judged == versions()


@pytest.mark.parametrize("training", PLAIN.values(), ids=PLAIN.keys())
def test_whole_trainings_are_untouched_and_their_ops_are_healthy(training: Training) -> None:
    plain = training()
    with judging() as found:
        judged = training()
    assert judged.losses == plain.losses
    for name, tensor in plain.tensors.items():
        assert torch.allclose(tensor, judged.tensors[name], rtol=0, atol=0, equal_nan=True), name
    assert found.reference.not_judged == {}
    # the gradient of an LSTM's weights is a sum over time steps that the fused kernel adds up one by one
    assert max(found.worst().values()) <= 16, found.worst()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
def test_a_convolutional_network_is_judged_from_input_to_optimizer(dtype: torch.dtype, optimizer: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, groups=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    kinds: dict[str, Any] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, **kinds[optimizer])
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 4, (4,))
    with judging() as found:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
    worst = found.worst()
    expected = {
        "aten.convolution.default", "aten.convolution_backward.default", "aten.native_batch_norm.default",
        "aten.native_batch_norm_backward.default", "aten.max_pool2d_with_indices_backward.default",
        "aten.nll_loss_forward.default", "aten.addmm.default",
        {"loop": "aten.addcdiv_.default", "foreach": "aten._foreach_addcdiv_.ScalarList",
         "fused": "aten._fused_adamw_.default"}[optimizer],
    }  # fmt: skip
    if dtype == torch.float16 and optimizer != "fused":
        expected.add("aten._amp_foreach_non_finite_check_and_unscale_.default")
    assert expected <= worst.keys()
    assert max(worst.values()) <= 8, worst
    assert found.reference.not_judged == {}


def skip_if_torch_refuses(call: Callable[[], object]) -> None:
    """Skip the test where torch itself has no kernel for the call on this processor (bf16 LSTMs need AVX-512)."""
    try:
        call()
    except RuntimeError as error:
        if "primitive descriptor" in str(error):
            pytest.skip(f"torch cannot run this on this processor: {error}")
        raise


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_lstm_is_judged_both_ways(dtype: torch.dtype, bidirectional: bool) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=bidirectional)
    x = torch.randn(3, 9, 6, requires_grad=True)
    narrow = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    with narrow:
        skip_if_torch_refuses(lambda: model(x))
    with judging() as found, narrow:
        output, (hidden, cell) = model(x)
        (output.square().sum() + hidden.sum() - cell.sum()).backward()
    for op in ("aten.mkldnn_rnn_layer.default", "aten.mkldnn_rnn_layer_backward.default"):
        assert 0 < found.worst()[op] <= 16


def test_against_itself_the_cpu_has_no_error() -> None:
    with judging("cpu") as found:
        PLAIN["resnet"]()
        PLAIN["autocast_bf16"]()
        PLAIN["gpt_fused_optimizer"]()
    assert set(found.worst().values()) == {0.0}
    assert found.reference.not_judged == {}


# -- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False], [True, False, True]])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [((3, 3), (1, 1), (1, 1), (1, 1)), ((1, 1), (2, 2), (0, 0), (1, 1)), ((2, 5), (3, 2), (1, 3), (2, 1))],
)
def test_every_plain_convolution_is_judged(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    mask: list[bool],
) -> None:
    x = numbers(5, 3, 11, 13).contiguous(memory_format=torch.channels_last)
    weight = numbers(4, 3, *kernel, seed=1)
    options = (list(stride), list(padding), list(dilation), False, [0, 0], 1)
    assert max_ulps(aten.convolution.default, x, weight, numbers(4), *options) <= 4
    grad = aten.convolution.default(x, weight, None, *options)
    found = introduced(aten.convolution_backward.default, grad, x, weight, [4], *options, mask)
    assert len(found) >= sum(mask)  # the kernel may compute more than was requested
    assert all(error.max_ulps <= 4 for error in found)


def test_products_that_use_bf16_inside_have_a_large_error_and_are_no_reference() -> None:
    x, y = numbers(64, 64), numbers(64, 64, seed=1)
    torch.set_float32_matmul_precision("medium")
    try:
        inexact = max_ulps(aten.mm.default, x, y)
        short = max_ulps(aten.mm.default, x.bfloat16(), y.bfloat16())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert inexact > 1000 or inexact < 8  # processors without bf16 products ignore the setting
    assert short <= 0.5
