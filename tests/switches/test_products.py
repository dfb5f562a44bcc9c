"""Products by multiplying and adding up agree with the real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from roundoff.switches import implementations as substitute_products
from roundoff.switches.implementations import PRODUCTS, addmm, baddbmm, bmm, mm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("elements_at_a_time", [1, 1 << 22])
def test_products_agree_with_torchs_own(dtype: torch.dtype, elements_at_a_time: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(substitute_products, "_NUM_ELEMENTS", elements_at_a_time)
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(-9, 9, shape, generator=generator).to(dtype)

    a, b, bias = numbers(2, 5, 3), numbers(2, 3, 4), numbers(4)
    cases: list[tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (mm, torch.mm, (a[0], b[0])),
        (bmm, torch.bmm, (a, b)),
        (addmm, torch.addmm, (bias, a[0], b[0])),
        (baddbmm, torch.baddbmm, (bias, a, b)),
    ]
    for candidate, reference, arguments in cases:
        found = candidate(*arguments)
        assert found.dtype == dtype
        torch.testing.assert_close(found, reference(*arguments))


def test_factors_count_and_a_bias_of_weight_0_may_be_anything():
    a, bias = torch.eye(2), torch.full((2,), torch.nan)
    assert addmm(bias, a, a, beta=0, alpha=3).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert baddbmm(torch.ones(2), a[None], a[None], beta=2, alpha=3).tolist() == [[[5.0, 2.0], [2.0, 5.0]]]


def test_empty_matrices_have_empty_or_zero_products():
    assert mm(torch.ones(2, 0), torch.ones(0, 3)).tolist() == [[0.0] * 3] * 2
    assert mm(torch.ones(0, 2), torch.ones(2, 3)).shape == (0, 3)


def test_every_product_of_torch_has_one():
    assert {op.overloadpacket.__name__ for op in PRODUCTS} == {"mm", "bmm", "addmm", "baddbmm"}
