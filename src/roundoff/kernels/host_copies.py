"""Copies tensors from accelerators to the host without waiting for each one; they are summarized there.

Summarizing on the device takes dozens of kernels, many times the tensor's memory, and fp64. A copy takes none of these:
it works on every device, and the compiled kernels read it like any other tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

_Result = TypeVar("_Result")
Reading: TypeAlias = Generator[Sequence[Tensor], list[Tensor], _Result]
"""What a function returns that yields tensors, is given them on the host, and goes on with their numbers."""

_BLOCK_BYTES = 16 << 20
_MAX_BYTES = 1 << 30
_ALIGNMENT = 64


class HostCopies:
    """Copies that are under way, in page-locked memory that is used again and again.

    At most a gigabyte is under way; beyond it, what there is is delivered first. Not for several threads at once.

    Args:
        max_bytes: how much may be under way.
        kept_bytes: how much memory is kept for the next copies.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES, *, kept_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept_bytes = kept_bytes
        self._blocks: list[Tensor] = []
        self._filled = 0
        """Blocks before this one are full."""
        self._offset = 0
        self._num_bytes = 0
        self._waiting: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self._devices: set[torch.device] = set()

    def add(self, x: Tensor, then: Callable[[Tensor], None]) -> None:
        """Begin to copy `x` as it is now; `then` gets the copy when it is delivered, and must not keep it."""
        x = x.detach().resolve_conj().resolve_neg()
        if self._num_bytes + x.nbytes > self._max_bytes:
            self.deliver()
        copy = self._take(x.nbytes).view(x.dtype).view(x.shape)
        copy.copy_(x, non_blocking=True)
        if not x.is_cpu:
            self._devices.add(x.device)
        self._waiting.append((copy, then))

    @property
    def are_waiting(self) -> bool:
        """Whether there is something to deliver."""
        return bool(self._waiting)

    def read(self, reading: Reading[_Result], then: Callable[[_Result], Any] = lambda result: None) -> None:
        """Let a function read tensors, at once where they are on the host; `then` gets its result."""
        try:
            wanted = next(reading)
            while all(x.is_cpu for x in wanted):
                wanted = reading.send(list(wanted))
        except StopIteration as end:
            then(end.value)
            return
        found = list(wanted)
        places = [place for place, x in enumerate(wanted) if not x.is_cpu]
        num_bytes = sum(found[place].nbytes for place in places)
        if num_bytes > self._max_bytes:
            then(_finish(reading, copy_to_host(wanted)))
            return
        if self._num_bytes + num_bytes > self._max_bytes:
            self.deliver()  # now, and not in the middle: what is delivered cannot be kept
        for place in places:
            self.add(wanted[place], lambda copy, place=place: found.__setitem__(place, copy))  # type: ignore[misc]
        self._waiting.append((found[places[-1]], lambda _: then(_finish(reading, found))))

    def deliver(self) -> None:
        """Wait for all copies, once for each device, and pass them on."""
        waiting, self._waiting = self._waiting, []
        for device in self._devices:
            torch.accelerator.synchronize(device)
        self._devices.clear()
        self._filled = self._offset = self._num_bytes = 0
        for copy, then in waiting:
            then(copy)
        if sum(block.numel() for block in self._blocks) > self._kept_bytes and not self._waiting:
            self._blocks = []

    def _take(self, num_bytes: int) -> Tensor:
        """Return unused memory; a block holds many small tensors or a large one."""
        while self._filled < len(self._blocks) and self._blocks[self._filled].numel() - self._offset < num_bytes:
            self._filled += 1
            self._offset = 0
        if self._filled == len(self._blocks):
            self._blocks.append(_page_locked(max(num_bytes, _BLOCK_BYTES)))
        part = self._blocks[self._filled][self._offset : self._offset + num_bytes]
        self._offset = -(-(self._offset + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        self._num_bytes += num_bytes
        return part


def read_now(reading: Reading[_Result]) -> _Result:
    """Return the result of a function that reads tensors, waiting for the device each time that it wants some."""
    return _finish(reading, None)


def _finish(reading: Reading[_Result], found: list[Tensor] | None) -> _Result:
    try:
        while True:
            found = copy_to_host(reading.send(found))  # type: ignore[arg-type]  # None starts it
    except StopIteration as end:
        result: _Result = end.value
        return result


def copy_to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies on the host, waiting once for each device; tensors that are on the CPU are returned themselves."""
    if all(x.is_cpu for x in tensors):
        return list(tensors)
    found, copies = list(tensors), HostCopies()
    for place, x in enumerate(tensors):
        if not x.is_cpu:
            copies.add(x, lambda copy, place=place: found.__setitem__(place, copy.clone()))  # type: ignore[misc]
    copies.deliver()
    return found


def fetch_numbers(numbers: Sequence[Tensor]) -> list[float]:
    """Return the values of tensors of one element, waiting once for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, number in enumerate(numbers):
        groups.setdefault((number.device, number.dtype), []).append(place)
    values = [0.0] * len(numbers)
    for places in groups.values():
        together = torch.stack([numbers[place].detach().reshape(()) for place in places])
        for place, value in zip(places, together.tolist(), strict=True):
            values[place] = float(value)
    return values


class LateNumber:
    """A number of an accelerator on its way to the host: nothing waits for it until it is read as a float."""

    __slots__ = ("_device", "_event", "_host")

    def __init__(self, x: Tensor) -> None:
        x = x.detach().reshape(())
        self._device = x.device
        self._host = page_locked_like(x)
        self._host.copy_(x, non_blocking=True)
        self._event: torch.Event | None = None
        try:
            event = torch.Event(x.device)
            event.record(torch.accelerator.current_stream(x.device))
            self._event = event
        except (RuntimeError, NotImplementedError):  # not every backend has events
            return

    @property
    def is_there(self) -> bool:
        """Whether it can be read without waiting; where the backend cannot tell, it is read at once."""
        return self._event is None or self._event.query()

    def __float__(self) -> float:
        """Return the number; wait for it if it is not there."""
        if self._event is None:
            torch.accelerator.synchronize(self._device)
        elif not self._event.query():
            self._event.synchronize()
        return float(self._host)


def is_there(number: Any) -> bool:
    """Return whether a number can be read without waiting for a device."""
    return not isinstance(number, LateNumber) or number.is_there


class HostCopy:
    """A copy on the host of one tensor of an accelerator; it is complete when the device has been waited for."""

    __slots__ = ("device", "host")

    def __init__(self, x: Tensor) -> None:
        self.device = x.device
        self.host = page_locked_like(x)
        self.host.copy_(x, non_blocking=True)

    def fits(self, x: Tensor) -> bool:
        """Return whether another tensor can be copied into the same memory."""
        return x.device == self.device and x.dtype == self.host.dtype and x.shape == self.host.shape

    def on_device(self) -> Tensor:
        """Return the tensor, on its device again."""
        return self.host.to(self.device, copy=True)


def stage(x: Tensor) -> Tensor:
    """Copy a tensor, one of an accelerator to the host: its memory is scarce. Nothing waits for the copy."""
    return HostCopy(x).host if can_be_copied(x) else x.clone()


def can_be_copied(x: Tensor) -> bool:
    """Return whether a tensor is on an accelerator and has plain memory, so that it can be copied without waiting."""
    is_plain = type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided
    return is_plain and not (x.is_cpu or x.is_meta or x.is_nested or x.is_quantized)


def page_locked_like(x: Tensor) -> Tensor:
    """Return memory on the host for a copy of a tensor, page-locked if its device can do that."""
    try:
        return torch.empty_like(x, device="cpu", pin_memory=True, requires_grad=False)
    except (RuntimeError, NotImplementedError):  # not every backend has it; copies to ordinary memory wait
        return torch.empty_like(x, device="cpu", requires_grad=False)


def _page_locked(num_bytes: int) -> Tensor:
    return page_locked_like(torch.empty(num_bytes, dtype=torch.uint8, device="meta"))
