"""Codes of blocks: held against a plain search for the nearest number, torch's cast, and torchao where it is there."""

import pytest
import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.block_codes import (
    CodeMap,
    code_map,
    pack_blocks,
    pack_blocks_torch,
    unpack_blocks,
    unpack_blocks_torch,
)

MAPS = [
    ("dynamic8", 256),
    ("dynamic8-unsigned", 256),
    ("dynamic4", 128),
    ("linear4-unsigned", 128),
    ("linear8", 2048),
    ("e4m3", 256),
]
every_map = pytest.mark.parametrize(("name", "block"), MAPS, ids=[name for name, _ in MAPS])


def values(name: str, *, size: int = 40_000, seed: int = 0) -> Tensor:
    """Values of many magnitudes; some blocks have a narrow range, and the last block is short."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator) * torch.randn(size, generator=generator).mul(4).exp()
    x[: size // 4] = torch.randn(size // 4, generator=generator) * 1e-6
    return x.abs() if name.endswith("unsigned") else x


def packed(x: Tensor, codes_of: CodeMap, pack=pack_blocks) -> tuple[Tensor, Tensor]:
    codes = torch.full((codes_of.num_code_bytes(x.numel()),), 77, dtype=torch.uint8)
    scales = torch.full((codes_of.num_blocks(x.numel()),), 77.0)
    pack(x, codes_of, codes=codes, scales=scales)
    return codes, scales


def unpacked(codes: Tensor, scales: Tensor, codes_of: CodeMap, numel: int, unpack=unpack_blocks) -> Tensor:
    out = torch.full((numel,), 77.0)
    unpack(codes, scales, codes_of, out=out)
    return out


def rounded(x: Tensor, codes_of: CodeMap) -> Tensor:
    return unpacked(*packed(x, codes_of), codes_of, x.numel())


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@every_map
def test_every_value_becomes_the_nearest_number_of_its_block(name: str, block: int):
    codes_of = code_map(name, block=block)
    x = values(name)
    numbers = codes_of.values[codes_of.values.isfinite()].double()
    found = rounded(x, codes_of).double()
    for part, got in zip(x.split(block), found.split(block), strict=True):
        scale = (part.abs().max() / codes_of.largest).double()
        error = ((part.double() / scale)[:, None] - numbers).abs().min(1).values
        assert ((got / scale - part.double() / scale).abs() <= error * (1 + 1e-5) + 1e-6 * codes_of.largest).all()


@every_map
def test_compiled_and_torch_give_the_same_bits(name: str, block: int):
    codes_of = code_map(name, block=block)
    x = values(name)
    x[5], x[3 * block + 1], x[4 * block : 5 * block] = torch.nan, torch.inf, 0.0
    x[6 * block : 7 * block] = 1e-41
    compiled, plain = packed(x, codes_of), packed(x, codes_of, pack_blocks_torch)
    assert torch.equal(compiled[0], plain[0])
    assert same_bits(compiled[1], plain[1])
    wanted = unpacked(*plain, codes_of, x.numel(), unpack_blocks_torch)
    assert same_bits(unpacked(*compiled, codes_of, x.numel()), wanted)


@pytest.mark.usefixtures("either_kernel")
@every_map
def test_a_block_with_a_bad_value_is_bad_and_no_other(name: str, block: int):
    codes_of = code_map(name, block=block)
    x = values(name, size=4 * block)
    x[block + 3], x[2 * block + 3] = torch.nan, torch.inf
    is_bad = rounded(x, codes_of).isnan().view(4, block)
    assert is_bad.all(1).tolist() == [False, True, True, False]
    assert is_bad.any(1).tolist() == [False, True, True, False]


@every_map
def test_zeros_stay_zeros(name: str, block: int):
    found = rounded(torch.zeros(3 * block + 7), code_map(name, block=block))
    assert same_bits(found, torch.zeros_like(found))


@every_map
def test_blocks_do_not_depend_on_where_they_are_cut(name: str, block: int):
    codes_of = code_map(name, block=block)
    x = values(name, size=8 * block + 11)
    codes, scales = packed(x, codes_of)
    head, tail = packed(x[: 3 * block], codes_of), packed(x[3 * block :].clone(), codes_of)
    assert torch.equal(torch.cat([head[0], tail[0]]), codes)
    assert torch.equal(torch.cat([head[1], tail[1]]), scales)


def near_midpoints(numbers: Tensor, *, block: int) -> Tensor:
    """Blocks with the scale 1 and the neighbours, a few ulps away, of every midpoint between two numbers."""
    middle = ((numbers[1:].double() + numbers[:-1].double()) / 2).float()
    places = [middle]
    for _ in range(4):
        places = [torch.nextafter(places[0], middle - 1), *places, torch.nextafter(places[-1], middle + 1)]
    x = torch.stack(places).flatten()
    x = torch.nn.functional.pad(x, (0, -x.numel() % (block - 1))).view(-1, block - 1)
    return torch.nn.functional.pad(x, (1, 0), value=1.0).flatten()


def dynamic_tree(bits: int, *, signed: bool) -> list[float]:
    """The definition, written by hand: in each decade twice as many means of equal parts as in the one below."""
    found = [0.0, 1.0]
    for decade in range(bits - 1):
        parts = 2**decade * (1 if signed else 2)
        means = [0.1 + 0.9 * (part + 0.5) / parts for part in range(parts)]
        found += [
            sign * mean * 10.0 ** (decade - (bits - 2)) for mean in means for sign in ((1, -1) if signed else (1,))
        ]
    return sorted(found)


@pytest.mark.parametrize(
    ("name", "bits", "signed"), [("dynamic8", 8, True), ("dynamic8-unsigned", 8, False), ("dynamic4", 4, True)]
)
def test_the_dynamic_tree_is_that_of_its_definition(name: str, bits: int, signed: bool):
    found, wanted = code_map(name, block=256).values, dynamic_tree(bits, signed=signed)
    assert len(found) == len(wanted) == 2**bits
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-6, atol=0)


def test_e4m3_is_torchs_cast():
    x = values("e4m3")
    x = x[: x.numel() // 256 * 256]
    scale = x.view(-1, 256).abs().amax(1) / 448
    codes, scales = packed(x, code_map("e4m3", block=256))
    assert torch.equal(scales, scale)
    wanted = (x.view(-1, 256) / scale[:, None]).to(torch.float8_e4m3fn)
    assert torch.equal(codes.view(-1, 256), wanted.view(torch.uint8))


@pytest.mark.parametrize("signed", [True, False])
def test_eight_bits_are_torchaos(signed: bool):
    """On a million values whose blocks exceed 1e-12; below, torchao takes that as the scale, and we do not."""
    utils = pytest.importorskip("torchao.optim.quant_utils")
    qmap = torch.tensor(utils.create_dynamic_map(signed))
    x = values("dynamic8" if signed else "dynamic8-unsigned", size=2**20)
    x = torch.cat([x, near_midpoints(qmap, block=256)])
    codes_of = code_map("dynamic8" if signed else "dynamic8-unsigned", block=256)
    assert torch.equal(codes_of.values, qmap)
    scaled, scale = utils.scale_tensor(x, 256)
    codes, scales = packed(x, codes_of)
    assert torch.equal(scales, scale)
    assert torch.equal(codes, utils.quantize_8bit_with_qmap(scaled, qmap))


@pytest.mark.parametrize("signed", [True, False])
def test_four_bits_are_torchaos(signed: bool):
    utils = pytest.importorskip("torchao.optim.quant_utils")
    x = values("dynamic4" if signed else "linear4-unsigned", size=2**20)
    qmap = torch.tensor(utils.create_dynamic_map(True, 3, 4)) if signed else torch.linspace(0, 1, 17)[1:]
    codes_of = code_map("dynamic4" if signed else "linear4-unsigned", block=128)
    x = torch.cat([x, near_midpoints(qmap, block=128)])
    scaled, scale = utils.scale_tensor(x, 128)
    codes = utils.quantize_4bit_with_qmap(scaled, qmap)
    assert torch.equal(rounded(x, codes_of), utils.dequant_with_qmap(codes, qmap, scale))


def test_only_flat_fp32_and_room_of_the_right_size_is_taken():
    codes_of = code_map("dynamic8", block=256)
    codes, scales = packed(torch.zeros(512), codes_of)
    with pytest.raises(KernelError, match="only flat, contiguous float32"):
        pack_blocks(torch.zeros(2, 256), codes_of, codes=codes, scales=scales)
    with pytest.raises(KernelError, match="only flat, contiguous float32"):
        pack_blocks(torch.zeros(512).double(), codes_of, codes=codes, scales=scales)
    with pytest.raises(KernelError, match="do not fit 513 values"):
        unpack_blocks(codes, scales, codes_of, out=torch.zeros(513))
