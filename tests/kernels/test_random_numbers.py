from types import SimpleNamespace

import pytest
import torch

from roundoff.errors import KernelError
from roundoff.kernels.random_numbers import draw_key, indices_of, random_31, splitmix64

KEY = 0x0123456789ABCDEF


def test_the_numbers_are_spread_evenly():
    numbers = random_31(torch.arange(1 << 18), key=KEY)
    assert numbers.min() >= 0
    assert numbers.max() < 2**31
    counts = torch.histc(numbers.double(), bins=64, min=0, max=2**31)
    expected = (1 << 18) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi-square with 63 degrees of freedom


@pytest.mark.parametrize("bit", range(31))
def test_every_bit_is_set_half_of_the_time(bit):
    bits = random_31(torch.arange(1 << 16), key=KEY) >> bit & 1
    assert abs(bits.double().mean() - 0.5) < 4 * 0.5 / 256


def test_neighbours_and_keys_are_unrelated():
    index = torch.arange(1 << 16)
    a, b = (random_31(index, key=key).double() for key in (KEY, KEY + 1))
    c = random_31(index, key=KEY + (1 << 32)).double()
    for first, second in [(a, b), (a, c), (a[1:], a[:-1]), (a[2:], a[:-2])]:
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 4 / 256


def test_no_key_is_a_shift_of_another():
    index = torch.arange(1 << 16)
    a, b = (set(random_31(index, key=key).tolist()) for key in (splitmix64(1), splitmix64(2)))
    assert len(a & b) < 20


def test_the_key_depends_on_seed_and_stream():
    def key(seed: int, stream: int) -> int:
        return draw_key(torch.Generator().manual_seed(seed), stream=stream)

    keys = [key(seed, stream) for seed in range(4) for stream in (-1, 0, 1, 2**40)]
    assert len(set(keys)) == 16
    assert all(0 <= each < 2**64 for each in keys)
    assert key(1, 2) == key(1, 2)


def test_a_generator_on_a_device_is_an_error():
    with pytest.raises(KernelError, match="cannot draw from a generator on meta"):
        draw_key(SimpleNamespace(device=torch.device("meta")))


def test_elements_are_numbered_in_row_major_order():
    assert indices_of(torch.ones(3, 2).t()).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_indices_beyond_32_bits_have_numbers_of_their_own(monkeypatch):
    index = torch.arange(1000)
    expected = random_31(index, key=KEY)
    monkeypatch.setattr("roundoff.kernels.random_numbers._MAX_SHORT", 0)  # a tensor that long would take 32 GB
    assert torch.equal(random_31(index, key=KEY), expected)
    beyond = random_31(index + (1 << 32), key=KEY)
    assert (beyond == expected).sum() < 5
    assert 0 <= beyond.min() <= beyond.max() < 2**31
