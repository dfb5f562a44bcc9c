"""Block formats against other implementations, bit for bit on a million blocks, where these are installed.

`pip install --no-deps ml_dtypes torchao triton` for all of them.
"""

import dataclasses

import pytest
import torch
from torch import Tensor

from roundoff.formats import format_named, round_to

pytestmark = pytest.mark.slow


def blocks_of(size: int, num_blocks: int = 1_000_000) -> Tensor:
    """Return rows of four blocks: normal values of every magnitude, ties, zeros."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(num_blocks // 4, 4, size, generator=generator)
    rows *= 2.0 ** torch.randint(-20, 20, (num_blocks // 4, 4, 1), generator=generator)
    rows[::5] = (rows[::5] * 4).round() / 4
    rows[::7, 1] = 0.0
    return rows.flatten(1)


def test_nvfp4_equals_torchao():
    tensors = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = blocks_of(16)
    of_tensor = tensors.per_tensor_amax_to_scale(x.abs().max())
    theirs = tensors.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=of_tensor).dequantize(torch.float32)
    assert torch.equal(round_to(x, "nvfp4"), theirs)


def test_nvfp4_elements_and_scales_equal_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = blocks_of(16, 200_000).view(-1, 16).numpy()
    of_tensor = abs(x).max() / (448.0 * x.dtype.type(6.0))
    scale = (abs(x).max(1, keepdims=True) / 6 / of_tensor).clip(2.0**-6, 448)
    scale = scale.astype(ml_dtypes.float8_e4m3fn).astype("float32")
    scaled = (x * (1 / of_tensor / scale)).clip(-6, 6)
    theirs = scaled.astype(ml_dtypes.float4_e2m1fn).astype("float32") * (of_tensor * scale)
    assert torch.equal(round_to(torch.from_numpy(x), "nvfp4"), torch.from_numpy(theirs))


@pytest.mark.parametrize("name", ["fp8-1x128", "fp8-128x128"])
def test_fp8_blocks_equal_torchao(name: str):
    kernels = pytest.importorskip("torchao.prototype.blockwise_fp8_training.kernels")
    fmt = dataclasses.replace(format_named(name), scale="fp32")  # type: ignore[type-var]
    if name == "fp8-1x128":
        x = blocks_of(128, 100_000)
        codes, back = kernels.torch_blockwise_scale_act_quant_lhs(x)
        theirs = codes.float() * back.repeat_interleave(128, 1)
    else:
        x = blocks_of(128, 12_800).view(-1, 512)[:3200]
        codes, back = kernels.torch_blockwise_scale_weight_quant(x.contiguous())
        theirs = codes.float() * back.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(round_to(x, fmt), theirs)


@pytest.mark.parametrize("power_of_two", [False, True])
def test_fp8_rows_and_their_powers_of_two_equal_torchao(power_of_two: bool):
    utils = pytest.importorskip("torchao.float8.float8_utils")
    x = blocks_of(16).view(-1, 64)
    into = utils.amax_to_scale(x.abs().amax(1, keepdim=True), torch.float8_e4m3fn, power_of_two)
    theirs = (x * into).clamp(-448, 448).to(torch.float8_e4m3fn).float() / into
    scale = "power_of_two" if power_of_two else "fp32"
    ours = round_to(x, dataclasses.replace(format_named("fp8-row"), scale=scale))  # type: ignore[type-var]
    if power_of_two:
        assert torch.equal(ours, theirs)
    else:
        # We multiply by the rounded inverse, as torchao's blocks do; dividing by the factor rounds once less.
        assert torch.allclose(ours, theirs, rtol=2**-22, atol=0)


@pytest.mark.parametrize(("name", "dtype"), [("mxfp8", "float8_e4m3fn"), ("mxfp4", "float4_e2m1fn_x2")])
def test_microscaling_equals_torchao(name: str, dtype: str):
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    x = blocks_of(32)
    theirs = mx.MXTensor.to_mx(x, getattr(torch, dtype), 32).dequantize(torch.float32)
    assert torch.equal(round_to(x, name), theirs)


def test_mxint8_equals_its_published_definition():
    """OCP MX 1.0, 5.3.4: two's complement with six fractional bits, of which -128 is left out; ties go to even."""
    x = blocks_of(32).view(-1, 32).double()
    amax = x.abs().amax(1, keepdim=True)
    scale = 2.0 ** torch.where(amax > 0, torch.frexp(amax).exponent - 1, -127).double()
    theirs = (x / scale * 64).round().clamp(-127, 127) / 64 * scale
    assert torch.equal(round_to(x.float(), "mxint8").double(), theirs)
