"""Block formats against other implementations, bit for bit on a million blocks, where these are installed.

`pip install --no-deps ml_dtypes torchao triton` for all of them.
"""

import dataclasses

import pytest
import torch
from torch import Tensor

from roundoff.formats import format_named, round_to

pytestmark = pytest.mark.slow


def blocks_of(size: int, num_blocks: int = 1_000_000, *, seed: int = 0) -> Tensor:
    """Return rows of four blocks: normal values of every magnitude, ties, zeros."""
    generator = torch.Generator().manual_seed(seed)
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


def test_fp8_blocks_equal_torchao():
    kernels = pytest.importorskip("torchao.prototype.blockwise_fp8_training.kernels")
    fmt = dataclasses.replace(format_named("fp8-1x128"), scale="fp32")  # type: ignore[type-var]
    for seed in range(10):  # a million blocks at once would take gigabytes
        x = blocks_of(128, 100_000, seed=seed)
        codes, back = kernels.torch_blockwise_scale_act_quant_lhs(x)
        assert torch.equal(round_to(x, fmt), codes.float() * back.repeat_interleave(128, 1))


def test_fp8_square_blocks_equal_torchao():
    """On a thousand blocks of 128x128, 16 million numbers: a million of them would be 16 billion."""
    kernels = pytest.importorskip("torchao.prototype.blockwise_fp8_training.kernels")
    fmt = dataclasses.replace(format_named("fp8-128x128"), scale="fp32")  # type: ignore[type-var]
    x = blocks_of(128, 128_000).view(-1, 512)
    codes, back = kernels.torch_blockwise_scale_weight_quant(x.contiguous())
    theirs = codes.float() * back.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(round_to(x, fmt), theirs)


def test_nvfp4_square_blocks_equal_torchao_with_the_largest_of_a_block_in_every_row():
    """torchao has only rows of 16 on a CPU: with the same largest number, the rows of a square have its scale."""
    tensors = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    squares = blocks_of(16, 1_000_000).view(-1, 16, 16)
    squares[:, :, 0] = squares.abs().amax((1, 2))[:, None]
    x = squares.reshape(-1, 16)
    of_tensor = tensors.per_tensor_amax_to_scale(x.abs().max())
    theirs = tensors.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=of_tensor).dequantize(torch.float32)
    assert torch.equal(round_to(x, "nvfp4-16x16"), theirs)


def test_int8_rows_equal_torchao_within_a_rounding_of_the_scale():
    """torchao divides by a rounded scale, and we multiply by a rounded factor: exact ties may fall differently."""
    int8 = pytest.importorskip("torchao.prototype.quantized_training.int8")
    x = blocks_of(16).view(-1, 16)
    codes, scale = int8.quantize_int8_rowwise(x)
    ours, theirs = round_to(x, "int8-row"), codes.float() * scale[:, None]
    differs = (ours - theirs).abs() > 0.5 * scale[:, None]
    in_steps = (x / scale[:, None])[differs]
    assert torch.allclose(in_steps - in_steps.floor(), torch.tensor(0.5), atol=1e-4)
    assert torch.allclose(ours[~differs], theirs[~differs], rtol=3e-7, atol=0)


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
