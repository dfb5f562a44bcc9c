"""Copies on their way to the host; tests/device has the accelerator."""

from __future__ import annotations

import torch
from torch import Tensor

from roundoff.kernels.compiled import has_fp64
from roundoff.kernels.host_copies import HostCopies, fetch_numbers


def test_each_copy_is_passed_on_once_as_it_was_when_it_was_added() -> None:
    copies = HostCopies()
    seen: list[Tensor] = []
    x = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    added = [x.clone(), x.t().clone(), x[:, 1].clone(), torch.view_as_complex(torch.ones(2, 2)).conj(), torch.empty(0)]
    for number, tensor in enumerate((x, x.t(), x[:, 1], added[3], added[4])):
        copies.add(tensor, lambda copy: seen.append(copy.clone()))
        assert len(seen) == 0, number
    x.zero_()
    copies.deliver()
    copies.deliver()

    assert [copy.dtype for copy in seen] == [tensor.dtype for tensor in added]
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(seen, added, strict=True))


def test_what_is_under_way_is_bounded() -> None:
    copies = HostCopies(max_bytes=40)
    seen: list[float] = []
    for number in range(5):
        copies.add(torch.full((4,), float(number)), lambda copy: seen.append(copy[0].item()))
    assert seen == [0, 1, 2, 3]
    copies.add(torch.full((100,), 5.0), lambda copy: seen.append(copy[0].item()))
    copies.deliver()

    assert seen == [0, 1, 2, 3, 4, 5]


def test_memory_is_used_again() -> None:
    copies = HostCopies()
    addresses: list[int] = []
    for _ in range(3):
        copies.add(torch.ones(5 << 20), lambda copy: addresses.append(copy.data_ptr()))
        copies.add(torch.ones(3), lambda copy: addresses.append(copy.data_ptr()))
        copies.deliver()

    assert addresses[:2] * 3 == addresses


def test_numbers_are_fetched_together() -> None:
    numbers = [torch.tensor(2.5), torch.tensor([3]), torch.tensor(0.1, dtype=torch.float64), torch.tensor(4.0)]

    assert fetch_numbers(numbers) == [2.5, 3.0, 0.1, 4.0]
    assert fetch_numbers([]) == []


def test_a_device_that_is_not_there_has_no_fp64() -> None:
    assert has_fp64(torch.device("cpu"))
    assert not has_fp64(torch.device("mps"))
