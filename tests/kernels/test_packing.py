import pytest
import torch

from roundoff.errors import KernelError
from roundoff.kernels.group_codes import num_packed_bytes, pack_bits, pack_bits_torch, unpack_bits, unpack_bits_torch

WIDTHS = range(1, 9)
SIZES = [0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4099]


def codes(num_bits: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 2**num_bits, (size,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("num_bits", WIDTHS)
@pytest.mark.parametrize("size", SIZES)
def test_unpacking_gives_back_what_was_packed(num_bits, size):
    original = codes(num_bits, size)
    packed = pack_bits(original, num_bits=num_bits)
    assert packed.numel() == num_packed_bytes(size, num_bits=num_bits) == -(-size * num_bits // 8)
    assert torch.equal(unpack_bits(packed, num_bits=num_bits, num_codes=size), original)


@pytest.mark.parametrize("num_bits", WIDTHS)
@pytest.mark.parametrize("size", SIZES)
def test_compiled_and_torch_give_the_same_bytes(num_bits, size):
    original = codes(num_bits, size)
    packed = pack_bits(original, num_bits=num_bits)
    assert torch.equal(pack_bits_torch(original, num_bits=num_bits), packed)
    assert torch.equal(unpack_bits_torch(packed, num_bits=num_bits, num_codes=size), original)


@pytest.mark.parametrize("num_bits", WIDTHS)
def test_code_i_takes_the_bits_from_i_times_the_width(num_bits):
    original = codes(num_bits, 100)
    number = sum(int(code) << (i * num_bits) for i, code in enumerate(original))
    expected = number.to_bytes(num_packed_bytes(100, num_bits=num_bits), "little")
    assert bytes(pack_bits(original, num_bits=num_bits).tolist()) == expected


def test_bits_beyond_the_width_are_cut_off():
    original = torch.full((9,), 0xFD, dtype=torch.uint8)
    packed = pack_bits(original, num_bits=2)
    assert torch.equal(packed, pack_bits_torch(original, num_bits=2))
    assert unpack_bits(packed, num_bits=2, num_codes=9).tolist() == [1] * 9


def test_a_tensor_of_any_shape_and_stride_is_packed_in_row_major_order():
    original = codes(3, 60).view(4, 15)
    assert torch.equal(pack_bits(original.t().contiguous().t(), num_bits=3), pack_bits(original.flatten(), num_bits=3))
    assert torch.equal(pack_bits(original[:, ::2], num_bits=3), pack_bits(original[:, ::2].flatten(), num_bits=3))


def test_fewer_codes_than_were_packed_can_be_unpacked():
    original = codes(5, 64)
    packed = pack_bits(original, num_bits=5)
    assert torch.equal(unpack_bits(packed, num_bits=5, num_codes=11), original[:11])
    assert torch.equal(unpack_bits_torch(packed, num_bits=5, num_codes=11), original[:11])


def test_more_codes_than_the_bytes_hold_are_an_error():
    with pytest.raises(KernelError) as caught:
        unpack_bits(torch.zeros(3, dtype=torch.uint8), num_bits=4, num_codes=7)
    assert str(caught.value) == (
        "3 bytes do not hold 7 codes of 4 bits.\n"
        "  why: they need 4 bytes.\n"
        "  fix: unpack with the number of codes and bits that were packed."
    )


@pytest.mark.parametrize("num_bits", [0, 9, -1])
def test_a_width_beyond_a_byte_is_an_error(num_bits):
    with pytest.raises(KernelError, match="1 to 8 bits"):
        pack_bits(torch.zeros(3, dtype=torch.uint8), num_bits=num_bits)


def test_codes_are_bytes():
    with pytest.raises(KernelError, match=r"torch\.int64 cannot hold codes"):
        pack_bits(torch.zeros(3, dtype=torch.int64), num_bits=2)


@pytest.mark.usefixtures("either_kernel")
@pytest.mark.parametrize("num_bits", WIDTHS)
def test_both_kernels_pack_and_unpack(num_bits):
    original = codes(num_bits, 65)
    packed = pack_bits(original, num_bits=num_bits)
    assert torch.equal(unpack_bits(packed, num_bits=num_bits, num_codes=65), original)
