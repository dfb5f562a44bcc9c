"""The compiled loops, their torch versions and every instruction set give the same bits."""

import hashlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.compiled import compiled_kernels
from roundoff.kernels.rounding import _runs_of, round_blocks, round_fixed, round_float, round_scaled_blocks
from roundoff.kernels.rounding_rules import BLOCK_SCALES, ROUNDINGS, FloatGrid
from roundoff.kernels.rounding_torch import round_blocks_torch, round_fixed_torch, round_float_torch

BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
KEY = 0x0123456789ABCDEF

GRIDS = {
    "e4m3": FloatGrid(mantissa_bits=3, min_exponent=-6, largest=448.0, overflow="saturate"),
    "e5m2": FloatGrid(mantissa_bits=2, min_exponent=-14, largest=57344.0, overflow="infinity"),
    "e4m3fnuz": FloatGrid(mantissa_bits=3, min_exponent=-7, largest=240.0, overflow="nan", signed_zero=False),
    "e2m1": FloatGrid(mantissa_bits=1, min_exponent=0, largest=6.0, overflow="saturate"),
    "fp16": FloatGrid(mantissa_bits=10, min_exponent=-14, largest=65504.0, overflow="infinity"),
    "bf16": FloatGrid(mantissa_bits=7, min_exponent=-126, largest=(2 - 2**-7) * 2.0**127, overflow="infinity"),
    "fp32": FloatGrid(mantissa_bits=23, min_exponent=-126, largest=(2 - 2**-23) * 2.0**127, overflow="infinity"),
    "wider than fp32": FloatGrid(mantissa_bits=5, min_exponent=-254, largest=2.0**200, overflow="saturate"),
    "as wide as fp64": FloatGrid(mantissa_bits=3, min_exponent=-1022, largest=2.0**1023, overflow="infinity"),
    "fp64 with less": FloatGrid(mantissa_bits=51, min_exponent=-1000, largest=2.0**100, overflow="infinity"),
    "near fp32's end": FloatGrid(mantissa_bits=5, min_exponent=-120, largest=2.0**100, overflow="infinity"),
    "long mantissa": FloatGrid(mantissa_bits=22, min_exponent=-62, largest=2.0**60, overflow="nan"),
    "powers of two": FloatGrid(mantissa_bits=0, min_exponent=-6, largest=64.0, overflow="infinity"),
}


def inputs(dtype: torch.dtype) -> Tensor:
    """Every kind of number, and random bit patterns; 4099 of them, so that no vector width divides them."""
    generator = torch.Generator().manual_seed(0)
    integers = BITS[dtype]
    limits = torch.iinfo(integers)
    patterns = torch.randint(limits.min, limits.max, (2000,), dtype=integers, generator=generator).view(dtype)
    normal = torch.randn(1000, generator=generator, dtype=torch.float64).to(dtype)
    exponents = torch.randint(-30, 10, (800,), generator=generator).double()
    ties = (torch.randint(-40, 40, (800,), generator=generator).double() / 4 * 2.0**exponents).to(dtype)
    subnormal = torch.randint(0, 1 << min(22, limits.bits - 6), (280,), dtype=integers, generator=generator).view(dtype)
    special = torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 65504, 65519, 65520, 448, 464, 480, 240, 248, 1e-45]
    )
    parts = [patterns, normal, ties, subnormal, special.to(dtype), torch.full((5,), 1.5, dtype=dtype)]
    return torch.cat(parts)


def same(a: Tensor, b: Tensor) -> bool:
    integers = BITS[a.dtype]
    where = ~a.isnan()
    return torch.equal(where, ~b.isnan()) and torch.equal(a.view(integers)[where], b.view(integers)[where])


@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_compiled_and_torch_agree_on_small_floats(grid, dtype, rounding):
    x = inputs(dtype)
    expected = round_float_torch(x, grid, rounding=rounding, key=KEY)
    assert same(round_float(x, grid, rounding=rounding, key=KEY), expected)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e4m3fnuz", "powers of two"])
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_compiled_and_torch_agree_on_blocks(name, dtype, rounding):
    x = inputs(dtype)[:4095].view(7, 585)
    how = {"block_size": 32, "max_exponent": 8, "rounding": rounding, "key": KEY}
    assert same(round_blocks(x, GRIDS[name], **how), round_blocks_torch(x, GRIDS[name], **how))


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("lowest", "highest"), [(-2, 2), (-128, 127), (-(2**23), 2**23 - 1), (0, 255)])
def test_compiled_and_torch_agree_on_fixed_point(dtype, rounding, lowest, highest):
    x = inputs(dtype)
    for step in (0.25, 0.065, 2.0**-30, 1e6):
        how = {"step": step, "lowest": lowest, "highest": highest, "rounding": rounding, "key": KEY}
        assert same(round_fixed(x, **how), round_fixed_torch(x, **how)), step


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("shape", [(), (1,), (5, 1, 1, 1), (1, 6, 1, 1), (6, 1, 1), (1, 1, 7), (5, 6, 1, 1)])
def test_every_step_of_a_tensor_of_steps_holds_for_its_part(rounding, shape):
    x = torch.randn(5, 6, 4, 7)
    step = torch.rand(shape) + 0.1
    result = round_fixed(x, step=step, lowest=-8, highest=7, rounding=rounding, key=KEY)
    assert same(result, round_fixed_torch(x, step=step, lowest=-8, highest=7, rounding=rounding, key=KEY))
    if rounding == "nearest":
        assert torch.equal(result, (x / step).round().clamp(-8, 7) * step)


def test_a_step_that_does_not_fit_is_torchs_error():
    with pytest.raises(RuntimeError, match="must match the size"):
        round_fixed(torch.ones(3, 4), step=torch.ones(5), lowest=-1, highest=1)


def test_an_element_gets_the_same_random_number_however_the_tensor_is_cut():
    x = torch.randn(1000)
    whole = round_float(x, GRIDS["e4m3"], rounding="stochastic", key=KEY)
    front = round_float(x[:333].clone(), GRIDS["e4m3"], rounding="stochastic", key=KEY)
    assert torch.equal(whole[:333], front)


def digest() -> str:
    """Hash the results of every kernel; run in a process of its own for each instruction set."""
    hashed = hashlib.sha256()
    for dtype, integers in BITS.items():
        x = inputs(dtype)
        for rounding in ROUNDINGS:
            results = [round_float(x, grid, rounding=rounding, key=KEY) for grid in GRIDS.values()]
            results += [
                round_blocks(x, GRIDS[name], block_size=32, max_exponent=8, rounding=rounding, key=KEY)
                for name in ("e4m3", "e5m2", "e2m1")
            ]
            results += [
                round_fixed(x, step=step, lowest=-100, highest=127, rounding=rounding, key=KEY)
                for step in (0.25, 0.065)
            ]
            for result in results:
                hashed.update(result.view(integers).numpy().tobytes())
    return hashed.hexdigest()


@pytest.mark.skipif(compiled_kernels() is None, reason="the compiled kernels are not built")
@pytest.mark.parametrize("level", ["plain", "v3"])
def test_every_instruction_set_gives_the_same_bits(level):
    code = (
        "import importlib.util, json, sys;"
        f"spec = importlib.util.spec_from_file_location('cases', {__file__!r});"
        "cases = importlib.util.module_from_spec(spec); spec.loader.exec_module(cases);"
        "from roundoff.kernels.compiled import compiled_kernels;"
        "print(json.dumps([compiled_kernels().level(), cases.digest()]))"
    )
    environment = {**os.environ, "ROUNDOFF_ISA": level}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=300
    )
    used, found = json.loads(answer.stdout)
    assert used in ("plain", "x86-64-v3")
    assert found == digest()


def test_a_kernel_takes_only_what_it_can_read():
    with pytest.raises(KernelError, match=r"torch\.int32"):
        round_fixed(torch.ones(1, dtype=torch.int32), step=1.0, lowest=-1, highest=1)


def test_a_subclass_of_tensor_takes_the_torch_version():
    class Marked(torch.Tensor):
        pass

    x = torch.randn(100)
    result = round_float(x.as_subclass(Marked), GRIDS["e4m3"])
    assert torch.equal(result.as_subclass(torch.Tensor), round_float(x, GRIDS["e4m3"]))


def test_a_tensor_without_data_gives_one_without_data():
    x = torch.empty(3, 4, device="meta")
    assert round_float(x, GRIDS["e4m3"]).shape == (3, 4)
    assert round_blocks(x, GRIDS["e4m3"], block_size=32, max_exponent=8).device.type == "meta"
    assert round_fixed(x, step=0.5, lowest=-1, highest=1).dtype == torch.float32


@pytest.mark.parametrize("version", ["compiled", "torch"])
def test_a_view_that_negates_is_read_and_written_as_what_it_shows(version, monkeypatch):
    if version == "torch":
        monkeypatch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
    x = torch.randn(100, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    expected = round_float(x.clone(), GRIDS["e4m3"])
    assert torch.equal(round_float(x, GRIDS["e4m3"]), expected)
    assert torch.equal(
        round_fixed(x, step=0.5, lowest=-9, highest=9), round_fixed(x.clone(), step=0.5, lowest=-9, highest=9)
    )
    round_float(x, GRIDS["e4m3"], out=x)
    assert torch.equal(x, expected)


def test_steps_on_another_device_are_left_to_torch():
    assert _runs_of(torch.zeros(4), torch.ones((), device="meta")) is None
    steps, num_equal = _runs_of(torch.zeros(4), torch.ones(()))
    assert (steps.tolist(), num_equal) == ([1.0], 4)


INT8 = FloatGrid(mantissa_bits=6, min_exponent=6, largest=127.0, overflow="saturate", signed_zero=False)
ELEMENTS = {"e2m1": GRIDS["e2m1"], "e4m3": GRIDS["e4m3"], "int8": INT8, "powers of two": GRIDS["powers of two"]}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    magnitudes = 2.0 ** torch.randint(-9, 9, shape, generator=generator)
    x = torch.randn(shape, generator=generator) * magnitudes
    flat = x.view(-1)
    flat[::37] = 0.0
    flat[5::211] = math.nan
    flat[7::311] = math.inf
    flat[11::401] = -math.inf
    return x.to(dtype)


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    if compiled_kernels() is None:
        pytest.skip("the compiled kernels are not built")
    return monkeypatch


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scale", BLOCK_SCALES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_both_versions_give_the_same_bits(element, scale, rounding, in_torch):
    results = []
    for kernels in ("compiled", "torch"):
        if kernels == "torch":
            in_torch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
        results.append(
            [
                round_scaled_blocks(
                    values(3, 37, 67, dtype=dtype),
                    ELEMENTS[element],
                    block=block,
                    scale=scale,
                    rounding=rounding,
                    key=KEY,
                )
                for dtype in DTYPES
                for block in [(1, 16), (1, 0), (16, 16), (0, 0)]
            ]
        )
    assert all(same(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("shape", [(), (1,), (40,), (0,), (3, 0), (2, 3, 20)])
def test_any_shape_is_rounded_like_rows(shape, either_kernel):
    x = values(*shape) if math.prod(shape) else torch.zeros(shape)
    x = torch.nan_to_num(x, 1.0, 2.0, -2.0)
    result = round_scaled_blocks(x, GRIDS["e4m3"], block=(1, 16))
    assert result.shape == x.shape
    rows = x.reshape(-1, shape[-1]) if len(shape) > 1 and x.numel() else x.reshape(1, -1)
    if x.numel():
        expected = torch.stack([round_scaled_blocks(row, GRIDS["e4m3"], block=(1, 16)) for row in rows])
        assert torch.equal(result.reshape(rows.shape), expected)


def test_writes_to_out_and_in_place(either_kernel):
    x = values(8, 40)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        given = x.to(dtype)
        expected = round_scaled_blocks(given, GRIDS["e2m1"], block=(1, 16), scale="e4m3")
        out = torch.empty_like(given)
        assert round_scaled_blocks(given, GRIDS["e2m1"], block=(1, 16), scale="e4m3", out=out) is out
        assert same(out, expected)
        assert same(round_scaled_blocks(given, GRIDS["e2m1"], block=(1, 16), scale="e4m3", out=given), expected)


def test_a_tensor_of_zeros_stays(either_kernel):
    for scale in BLOCK_SCALES:
        assert not round_scaled_blocks(torch.zeros(4, 32), GRIDS["e2m1"], block=(1, 16), scale=scale).any()
