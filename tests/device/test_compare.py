"""A run on an accelerator against one on the CPU: nothing on a healthy device, else the op and its channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.diagnose.against import findings_against
from roundoff.runs import Finding, Run, Severity
from roundoff.watch.watching import watching
from tests.device.simulated_device import faulty
from tests.device.test_record import conv_net


class Attention(nn.Module):
    """Attention that is one kernel on the CPU and many on the device; its key bias has no gradient but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.qkv = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 96)
        self.head = nn.Linear(32, 50)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(self.embed(x))).view(*x.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        out: Tensor = self.head(mixed)
        return out


def batch(make: Callable[[], nn.Module], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if make is Attention:
        x = torch.randint(50, (8, 12), generator=generator)
        return x, (x + 1) % 50
    return torch.randn(16, 3, 6, 6, generator=generator), torch.randint(10, (16,), generator=generator)


def watch(folder: Path, device: str, make: Callable[[], nn.Module]) -> Run:
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    with watching(to=folder):
        for _ in range(4):
            x, y = (part.to(device) for part in batch(make, generator))
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
            optimizer.step()
    return Run.open(folder)


def compare(tmp_path: Path, make: Callable[[], nn.Module]) -> list[Finding]:
    reference = watch(tmp_path / "cpu", "cpu", make)
    candidate = watch(tmp_path / "device", "sim", make)
    return findings_against(compare_runs(reference, candidate))


@pytest.mark.parametrize("make", [conv_net, Attention])
def test_nothing_is_found_on_a_healthy_device(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    assert not [finding for finding in compare(tmp_path, make) if finding.severity is not Severity.NOTE]


FAULTS: list[tuple[Callable[[], nn.Module], str, dict[str, Any], str, str]] = [
    (conv_net, "convolution", {"factor": 1.05, "channel": 3}, "0 convolution#0 forward", ""),
    (conv_net, "convolution", {"factor": 1.01, "varies": True}, "0 convolution#0 forward", "16x8x6x6"),
    (conv_net, "native_batch_norm", {"factor": 1.05, "channel": 2}, "1 native_batch_norm#0 forward", ""),
    (conv_net, "native_batch_norm_backward", {"factor": 1.01}, "1 native_batch_norm_backward#0 backward", ""),
    (conv_net, "convolution_backward", {"factor": 1.01}, "0 convolution_backward#0 backward", ""),
    (conv_net, "convolution_backward", {"factor": 1.05, "channel": 1}, "0 convolution_backward#0 backward", ""),
    (conv_net, "addmm", {"factor": 1.01}, "5 addmm#0 forward", "16x10"),
    (conv_net, "_log_softmax", {"factor": 1.01}, "<loop> _log_softmax#0 forward", ""),
    (conv_net, "_foreach_addcdiv", {"factor": 1.01}, "0 addcdiv_#0 optimizer", ""),
    (Attention, "index_select", {"factor": 1.05, "channel": 3}, "embed embedding#0 forward", ""),
    (Attention, "addmm", {"factor": 1.01}, "qkv addmm#0 forward", "96x96"),
    (Attention, "addmm", {"factor": 1.1, "shape": (96, 50)}, "head addmm#0 forward", "96x50; addmm is right for 96x96"),
    (Attention, "mm", {"factor": 1.01, "shape": (96, 32)}, "head mm#0 backward", "96x32; mm is right for 50x32"),
    (Attention, "mm", {"factor": 1.01, "varies": True}, "head mm#0 backward", ""),
    (Attention, "native_batch_norm", {"factor": 1.01}, "norm native_layer_norm#0 forward", ""),
    (Attention, "embedding_dense_backward", {"factor": 1.01}, "embed embedding_dense_backward#0 backward", ""),
]  # fmt: skip
"""What is planted, the op that is named, and what is said about its shape."""


@pytest.mark.parametrize(("make", "kernel", "fault", "title", "shape"), FAULTS)
def test_a_planted_fault_is_named(
    tmp_path: Path, make: Callable[[], nn.Module], kernel: str, fault: dict[str, Any], title: str, shape: str
) -> None:
    with faulty(kernel, **fault):
        (finding,) = compare(tmp_path, make)

    assert finding.rule == "first-divergence"
    assert f"{finding.site} {finding.op} {finding.phase}" == title.replace(" ", " aten.", 1)
    assert finding.evidence[0]["channel"] == fault.get("channel")
    assert (f"channel {fault.get('channel')} of" in finding.title) == ("channel" in fault)
    said = next(line for line in finding.why.splitlines() if line.startswith("its result has the shape "))
    assert said.replace("aten.", "").endswith(shape)
    assert ("is right for" in said) == ("is right for" in shape)


@pytest.mark.parametrize(
    ("kernel", "last", "before"), [("bmm", "aten.bmm#1", "aten.bmm#0"), ("_softmax", "aten.bmm#1", "_safe_softmax#0")]
)
def test_a_fault_inside_what_is_one_kernel_on_the_cpu_is_narrowed_down(
    tmp_path: Path, kernel: str, last: str, before: str
) -> None:
    with faulty(kernel, factor=1.01):
        (finding,) = compare(tmp_path, Attention)

    assert (finding.site, finding.op) == ("<model>", last)
    said = next(line for line in finding.why.splitlines() if "it may come from an op before it" in line)
    assert before in said
