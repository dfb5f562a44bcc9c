"""Attention made of other ops agrees with the fused kernel, and so do its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from roundoff.switches.implementations import ATTENTION, attention, attention_backward

FUSED, FUSED_BACKWARD = ATTENTION


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.tensor([0.0, -1.0, -torch.inf, 0.5, 0.0, -torch.inf])},
    ],
    ids=["plain", "causal", "scaled", "masked"],
)
def test_output_and_gradients_agree_with_the_fused_kernel(settings: dict[str, Any], dtype: torch.dtype):
    query = numbers(2, 3, 5, 8, seed=0, dtype=dtype)
    key, value = (numbers(2, 3, 6, 8, seed=seed, dtype=dtype) for seed in (1, 2))
    if "attn_mask" in settings:
        settings = {"attn_mask": settings["attn_mask"].to(dtype).expand(2, 1, 5, 6)}
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    out, logsumexp = FUSED(query, key, value, **settings)
    for candidate, reference in zip(attention(query, key, value, **settings), (out, logsumexp), strict=True):
        torch.testing.assert_close(candidate, reference, check_dtype=False, **tolerance)
    is_causal = settings.pop("is_causal", False)
    given = (numbers(2, 3, 5, 8, seed=3, dtype=dtype), query, key, value, out, logsumexp, 0.0, is_causal)
    for candidate, reference in zip(
        attention_backward(*given, **settings), FUSED_BACKWARD(*given, **settings), strict=True
    ):
        assert candidate.dtype == dtype
        torch.testing.assert_close(candidate, reference, **tolerance)


def test_a_query_that_may_attend_to_nothing_gets_nothing():
    x = torch.ones(1, 1, 2, 4)
    mask = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])
    out, _ = attention(x, x, x, attn_mask=mask)
    assert out[0, 0, 1].tolist() == [0.0] * 4
    assert out[0, 0, 0].tolist() == [1.0] * 4
