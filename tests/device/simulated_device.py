"""A simulated accelerator of two devices for tests, and the example of how to try roundoff on a new backend.

`load()` compiles simulated_device.cpp (once, cached) and registers it with torch as `sim`. The host cannot read its
memory: reading it kills the process with SIGSEGV. `counting()` counts what costs time on an accelerator.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "sim"
NUM_DEVICES = 2

Execution = Literal["at once", "on a worker", "when waited for"]
_EXECUTIONS: tuple[Execution, ...] = ("at once", "on a worker", "when waited for")
_SOURCE = Path(__file__).with_suffix(".cpp")
_Listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64)


# -- building and loading ----------------------------------------------------------------------------------------------


def compiler() -> str | None:
    """Return the C++ compiler to build with, if there is one."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def build() -> Path:
    """Compile the device unless that has been done, and return the library; other processes wait meanwhile."""
    command = _command()
    content = _SOURCE.read_bytes() + repr((command, torch.__version__)).encode()
    folder = _SOURCE.parents[2] / "build" / "simulated_device"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.so"
    with open(folder / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            made = folder / "unfinished.so"
            subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, text=True)
            made.rename(library)
    return library


def _command() -> list[str]:
    found = compiler()
    if found is None:
        raise RuntimeError("The simulated device needs a C++ compiler.")
    package = Path(torch.__file__).parent
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", f"-I{package / 'include'}",
             f"-I{package / 'include/torch/csrc/api/include'}"]  # fmt: skip
    return [found, *flags, str(_SOURCE), f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10"]


@functools.cache
def load() -> types.ModuleType:
    """Register the device with torch, once in a process, and return `torch.sim`."""
    path = build()
    backend_registration.rename_privateuse1_backend(NAME)
    library = ctypes.CDLL(str(path))
    library.simulated_plant.argtypes = [ctypes.c_char_p, ctypes.c_double, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int,
                                        ctypes.c_int]  # fmt: skip
    library.simulated_register()
    module = _device_module(library)
    torch._register_device_module(NAME, module)
    # After the last backward, autograd's thread of the device still drops Python objects. One that does so when Python
    # is gone aborts the process, on any accelerator.
    atexit.register(time.sleep, 0.1)
    backend_registration.generate_methods_for_privateuse1_backend(unsupported_dtype=[torch.quint8])
    return module


def _library() -> Any:
    return load().library


def _device_module(library: Any) -> types.ModuleType:
    """Return what torch expects to find as `torch.sim`."""

    def index_of(device: Any = None) -> int:
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return torch.accelerator.current_device_index() if index is None else index

    def random_state(device: int, numbers: Sequence[int] = ()) -> list[int]:
        array = (ctypes.c_uint64 * 2)(*numbers)
        library.simulated_random_state(device, array, int(bool(numbers)))
        return list(array)

    def get_rng_state(device: Any = NAME) -> Tensor:
        return torch.tensor(random_state(index_of(device)), dtype=torch.uint64).view(torch.uint8)

    def set_rng_state(state: Tensor, device: Any = NAME) -> None:
        random_state(index_of(device), state.cpu().clone().view(torch.uint64).tolist())

    def manual_seed(seed: int) -> None:
        random_state(index_of(), [seed % 2**64, 0])

    def manual_seed_all(seed: int) -> None:
        for index in range(NUM_DEVICES):
            random_state(index, [seed % 2**64, 0])

    module = types.ModuleType(f"torch.{NAME}")
    functions: dict[str, Any] = {
        "library": library,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: NUM_DEVICES,
        "current_device": torch.accelerator.current_device_index,
        "device": lambda device: torch.accelerator.device_index(index_of(device)),
        "set_device": lambda device: torch.accelerator.set_device_index(index_of(device)),
        "synchronize": lambda device=None: torch.accelerator.synchronize(index_of(device)),
        "current_stream": lambda device=None: torch.accelerator.current_stream(index_of(device)),
        "Stream": torch.Stream,
        "Event": torch.Event,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state(index) for index in range(NUM_DEVICES)],
        "set_rng_state_all": lambda states: [set_rng_state(state, index) for index, state in enumerate(states)],
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
        "initial_seed": lambda: random_state(index_of())[0],
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


# -- how it behaves ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def behaving(*, execution: Execution = "at once", fp64: bool = True) -> Iterator[None]:
    """Run kernels at once, on a worker thread, or as late as a device may: only when the host waits for them."""
    configure = _library().simulated_configure
    configure(_EXECUTIONS.index(execution), int(fp64))
    try:
        yield
    finally:
        configure(0, 1)


@contextlib.contextmanager
def faulty(
    op: str, *, factor: float = 1.01, channel: int | None = None, shape: Sequence[int] = (), varies: bool = False
) -> Iterator[None]:
    """Multiply the results of an op by a factor: all, those of one channel or one shape; or by another one every time.

    `op` is the name of its kernel, such as `addmm`, `convolution` or `_softmax`; that of fp64 is another one.
    """
    array = (ctypes.c_int64 * len(shape))(*shape)
    number = -1 if channel is None else channel
    _library().simulated_plant(op.encode(), factor, number, array, len(shape), int(varies))
    try:
        yield
    finally:
        _library().simulated_repair()


# -- what it did -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """Something that costs time on an accelerator."""

    kind: str
    """wait, launch, to_host or to_device."""
    name: str
    num_bytes: int
    stack: tuple[str, ...]
    """The innermost Python frames, the innermost last; of an autograd thread only those that it called."""


@dataclass(slots=True)
class DeviceCounts:
    """What happened while counting."""

    events: list[DeviceEvent] = field(default_factory=list)
    before_bytes: list[int] = field(default_factory=lambda: [_bytes(index) for index in range(NUM_DEVICES)])

    def of(self, kind: str) -> list[DeviceEvent]:
        """Return the events of a kind."""
        return [event for event in self.events if event.kind == kind]

    @property
    def waits(self) -> list[str]:
        """What the host waited for, in order."""
        return [event.name for event in self.of("wait")]

    @property
    def num_launches(self) -> int:
        """How many kernels were launched."""
        return len(self.of("launch"))

    def peak_bytes(self, index: int = 0) -> int:
        """Return by how much the memory in use exceeded, at its peak, what was in use when counting began."""
        return torch.accelerator.max_memory_allocated(index) - self.before_bytes[index]

    def where(self, kind: str) -> str:
        """Return the events of a kind with their stacks, for the message of a failed test."""
        return "\n".join("\n  ".join((f"{event.kind} {event.name}", *event.stack)) for event in self.of(kind))


def _bytes(index: int) -> int:
    return int(torch.accelerator.memory_allocated(index))


@contextlib.contextmanager
def counting(*, stack_depth: int = 12) -> Iterator[DeviceCounts]:
    """Count waits, transfers, launches and memory of the block."""
    for index in range(NUM_DEVICES):
        torch.accelerator.reset_peak_memory_stats(index)
    counts = DeviceCounts()

    @_Listener
    def hear(kind: bytes, name: bytes, num_bytes: int) -> None:
        frames = traceback.extract_stack(limit=stack_depth + 1)[:-1] if stack_depth else []
        stack = tuple(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        counts.events.append(DeviceEvent(kind.decode(), name.decode(), num_bytes, stack))

    _library().simulated_listen(hear)
    try:
        yield counts
    finally:
        _library().simulated_listen(_Listener())
