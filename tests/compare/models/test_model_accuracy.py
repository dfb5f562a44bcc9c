"""Which of two models is nearer to fp64, as they really run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from roundoff.compare.models.model_comparison import compare_models

X = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))


class Narrow(nn.Sequential):
    """Computes in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 4)]


def test_the_narrow_model_is_farther_from_fp64() -> None:
    comparison = compare_models(nn.Sequential(*layers()), Narrow(*layers()), X, fp64=True)
    assert comparison.accuracy is not None
    assert [each.name for each in comparison.accuracy.tensors][:2] == ["output 0", "gradient of 0.weight"]
    assert all(each.reference < 1e-6 < 1e-4 < each.candidate < 0.1 for each in comparison.accuracy.tensors)
    assert "farther away to fp64" not in comparison.verdict
    assert "farther from fp64: the reference is nearer in 5, the candidate in 0 of 5 results." in comparison.verdict


def test_it_is_measured_on_request_only() -> None:
    assert compare_models(nn.Sequential(*layers()), nn.Sequential(*layers()), X).accuracy is None


@pytest.mark.slow
def test_a_compiled_model_runs_compiled_for_it() -> None:
    torch.compiler.reset()
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        calls.append(graph)
        return graph

    plain = nn.Sequential(*layers())
    comparison = compare_models(plain, torch.compile(plain, backend=backend), X)
    assert calls
    assert comparison.accuracy is not None
    assert comparison.accuracy.compiled == ("candidate",)
    assert len(comparison.accuracy.tensors) == 5
    assert "The candidate ran compiled for this; the ops are those of the eager code." in comparison.verdict
    torch.compiler.reset()
