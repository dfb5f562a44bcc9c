"""Tensors of an accelerator on their way to the host, and what is measured of them there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roundoff.kernels.compiled import has_fp64, where_fp64_is
from roundoff.kernels.host_copies import (
    HostCopies,
    HostCopy,
    LateNumber,
    Reading,
    can_be_copied,
    copy_to_host,
    fetch_numbers,
    is_there,
    read_now,
    stage,
)
from roundoff.kernels.summaries import histogram, summarize
from tests.device.simulated_device import behaving, counting

X = torch.tensor([3.0, -4.0, 0.0])


def _twice_read(x: Tensor) -> Reading[list[float]]:
    (first,) = yield [x]
    (second,) = yield [x * 2]
    return [*first.tolist(), *second.tolist()]


def test_what_is_on_the_device_is_read_when_it_is_delivered() -> None:
    results: list[list[float]] = []
    x = torch.tensor([1.0, 2.0])
    copies = HostCopies()
    copies.read(_twice_read(x), results.append)
    assert results == [[1, 2, 2, 4]]
    with behaving(execution="when waited for"):
        there = x.to("sim") + 1
        copies.read(_twice_read(there), results.append)
        number = LateNumber(there.sum())
        there.zero_()
        assert (len(results), number.is_there) == (1, False)
        copies.deliver()
        assert (results[1], number.is_there, float(number)) == ([2, 3, 0, 0], True, 5.0)
        HostCopies(max_bytes=4).read(_twice_read(there), results.append)
        assert (results[2], read_now(_twice_read(there))) == ([0] * 4, [0] * 4)


def test_all_copies_of_a_device_are_waited_for_once() -> None:
    seen: list[list[float]] = []
    copies = HostCopies(kept_bytes=0)
    with behaving(execution="when waited for"):
        for _ in range(2):
            for device in ("sim:0", "sim:1", "sim:0"):
                copies.add(X.to(device) + 1, lambda copy: seen.append(copy.tolist()))
            assert copies.are_waiting
            with counting() as counts:
                copies.deliver()
            assert (counts.waits, copies.are_waiting) == (["device"] * 2, False)
    assert seen == [[4.0, -3.0, 1.0]] * 6


def test_what_is_under_way_is_delivered_before_a_reading_that_does_not_fit() -> None:
    seen: list[list[float]] = []
    copies = HostCopies(max_bytes=X.nbytes)
    copies.add(X.to("sim"), lambda copy: seen.append(copy.tolist()))
    copies.read(_twice_read(X.to("sim")), seen.append)
    assert seen == [X.tolist()]
    copies.deliver()
    assert seen[1] == [*X.tolist(), *(2 * X).tolist()]


def test_tensors_on_the_cpu_are_not_copied() -> None:
    own, copied = copy_to_host([X, X.to("sim")])
    assert own is X
    assert torch.equal(copied, X)
    assert copy_to_host([X])[0] is X


def test_numbers_of_several_devices_are_fetched() -> None:
    assert fetch_numbers([X.to("sim").sum(), X[0], X.to("sim:1")[1]]) == [-1.0, 3.0, -4.0]


def test_a_number_that_is_not_there_yet_is_waited_for() -> None:
    with behaving(execution="when waited for"):
        number = LateNumber(X.to("sim").sum())
        assert not is_there(number)
        assert float(number) == -1.0
        assert is_there(number)
    assert is_there(3.0)


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_a_backend_without_events_is_waited_for_as_a_whole(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_events(device: torch.device) -> None:
        raise error

    monkeypatch.setattr(torch, "Event", no_events)
    with behaving(execution="when waited for"):
        number = LateNumber(X.to("sim").sum())
        assert (number.is_there, float(number)) == (True, -1.0)


def test_a_copy_goes_back_to_its_device_and_its_memory_is_used_for_tensors_alike() -> None:
    x = X.to("sim:1")
    copy = HostCopy(x)
    assert torch.equal(copy.host, X)
    back = copy.on_device()
    assert (back.device, back.tolist()) == (x.device, X.tolist())
    assert [copy.fits(other) for other in (x + 1, X.to("sim:0"), x.half(), x[:2])] == [True, False, False, False]


def test_only_plain_memory_of_an_accelerator_is_staged_on_the_host() -> None:
    assert stage(X.to("sim")).device.type == stage(X).device.type == "cpu"
    assert stage(X) is not X
    others = (X, torch.empty(3, device="meta"), X.to_sparse())
    assert [can_be_copied(x) for x in (X.to("sim"), *others)] == [True, False, False, False]


def test_a_tensor_of_the_device_has_the_summary_and_histogram_of_the_same_tensor_on_the_host() -> None:
    assert summarize(X.to("sim")).tolist() == summarize(X).tolist()
    assert histogram(X.to("sim")).tolist() == histogram(X).tolist()


def test_numbers_of_64_bits_are_computed_on_the_host_where_the_device_has_none(without_fp64: None) -> None:
    x = X.to("sim")
    assert (has_fp64(x.device), where_fp64_is(x).device.type, where_fp64_is(X)) == (False, "cpu", X)


def test_numbers_of_64_bits_are_computed_on_a_device_that_has_them() -> None:
    x = X.to("sim")
    assert where_fp64_is(x) is x
