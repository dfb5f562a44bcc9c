"""The switch `randomness`: random numbers that do not depend on device, dtype or memory layout."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundoff import torch_private
from roundoff.errors import SwitchError
from roundoff.kernels.random_numbers import splitmix64

_aten: Final = torch.ops.aten
_WITHOUT_GENERATOR: Final = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"}
_MAKES_FLOATS: Final = {"aten::rand", "aten::randn", "aten::normal"}
_KEEPING_FORMATS: Final = (torch.contiguous_format, torch.preserve_format)
_MAX_SEED: Final = 2**63 - 1


class DrawOnCpu(torch_private.DispatchMode):
    """Seeds every random op, and replaces what was not drawn on a CPU by numbers that were.

    Before each draw one number is taken from torch's default generator; it and the seed determine all the others. So
    code that resets that generator, as activation checkpointing does to recompute a dropout, gets the same numbers
    again, and it does not matter how many numbers the devices consume.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._warned: set[str] = set()

    @torch_private.never_compiled
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run an op; if it is random, with numbers drawn on the CPU."""
        kwargs = kwargs or {}
        # Tensor subclasses are left alone: they have no memory, or the parts of different ranks must differ.
        if not _is_random(func) or any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return func(*args, **kwargs)
        if not _is_replaceable(func):
            self._warn_if_random(func, args, kwargs)
            return func(*args, **kwargs)
        generators = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        if generators and generators[0].device.type == "cpu":
            return func(*args, **kwargs)  # a CPU generator of the script draws the same numbers on every device
        return self._draw_on_cpu(func, args, kwargs)

    def _draw_on_cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch_private.hidden_from_modes():
            ticket = int(torch.empty((), dtype=torch.int64).random_())
        seed = splitmix64(splitmix64(self._seed) ^ ticket) & _MAX_SEED
        if _is_plain(func, args, kwargs):
            with _seeding(seed):
                return func(*args, **kwargs)
        with torch_private.hidden_from_modes(), _seeding(seed):
            results, written = _draw(func, *_on_cpu(func, args, kwargs))
        with _seeding(seed):
            answer = func(*args, **kwargs)
        with torch_private.hidden_from_modes():
            for place, drawn in written.items():
                _argument(func, place, args, kwargs).copy_(drawn)
            for own, drawn in zip(_tensors(answer), results, strict=True):
                own.copy_(drawn)
        return answer

    def _warn_if_random(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warn once per fused kernel that its dropout cannot be replaced."""
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        name = str(func)
        if (given.get("dropout_p") or (given.get("dropout") and given.get("train"))) and name not in self._warned:
            self._warned.add(name)
            warnings.warn(f"{name} draws its dropout inside a kernel, so it does not become repeatable.", stacklevel=4)


@functools.cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


@functools.cache
def _is_replaceable(func: Any) -> bool:
    # An op's arguments, and which of them it writes to, are only in its schema, which has no public accessor.
    name = func._schema.name.partition("::")[2]
    takes_generator = any(argument.name == "generator" for argument in func._schema.arguments)
    return takes_generator or name in _WITHOUT_GENERATOR or func is _aten.native_dropout.default


@contextmanager
def _seeding(seed: int) -> Iterator[None]:
    """Seed torch's default generator inside the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _is_plain(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the op itself draws on the CPU, in fp32 and into contiguous memory."""
    if func is _aten.native_dropout.default:
        return False
    floats = torch.get_default_dtype() if kwargs.get("dtype") is None else kwargs["dtype"]
    if floats.is_floating_point and floats is not torch.float32:
        return False
    device, memory_format = kwargs.get("device"), kwargs.get("memory_format")
    device = torch.get_default_device() if device is None and not _tensors((args, kwargs)) else device
    if (device is not None and device.type != "cpu") or memory_format not in (None, *_KEEPING_FORMATS):
        return False
    return all(
        x.is_cpu and x.is_contiguous() and (not x.is_floating_point() or x.dtype is torch.float32)
        for x in _tensors((args, kwargs))
    )


def _on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the call on a CPU, in fp32 and in contiguous memory."""
    args, kwargs = torch_private.tree_map(_plain_value, (args, kwargs))
    for name in ("layout", "pin_memory", "memory_format"):
        kwargs.pop(name, None)
    takes = {argument.name for argument in func._schema.arguments}
    if "device" in takes:
        kwargs["device"] = torch.device("cpu")
    dtype = kwargs.get("dtype")
    if "dtype" in takes and (dtype.is_floating_point if dtype else func._schema.name in _MAKES_FLOATS):
        kwargs["dtype"] = torch.float32
    return args, kwargs


def _plain_value(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return None
    if not isinstance(value, Tensor):
        return value
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    return value.detach().to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)


def _draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], dict[int, Tensor]]:
    """Return the results of the call and, by index, the arguments that it writes into."""
    if func is _aten.native_dropout.default:
        return _dropout(*args), {}
    results = _tensors(func(*args, **kwargs))
    aliases = [argument.alias_info for argument in func._schema.arguments]
    places = [place for place, alias in enumerate(aliases) if alias is not None and alias.is_write]
    return results, {place: _argument(func, place, args, kwargs) for place in places}


def _dropout(x: Tensor, p: float, train: bool | None) -> list[Tensor]:
    if train is False:
        return [x, torch.ones_like(x, dtype=torch.bool)]
    # Not `dropout` itself: equal for devices with a dropout op and those that compose it.
    kept = torch.empty(x.shape).bernoulli_(1 - p) > 0
    return [x * (kept / (1 - p)) if p < 1 else torch.zeros_like(x), kept]


def _argument(func: Any, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[place] if place < len(args) else kwargs[func._schema.arguments[place].name]


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in torch_private.tree_flatten(values)[0] if isinstance(value, Tensor)]


OPTIONS: Final[frozenset[str]] = frozenset()


def turning_on(value: str, options: Mapping[str, str]) -> AbstractContextManager[None]:
    """Draw the random numbers of torch from a CPU generator with the seed `value`, in this thread.

    The nth draw gives the same numbers on every device, in every format and for every memory layout. A script that
    seeds torch itself still gets repeatable numbers; another seed of the switch gives other ones. The script's own CPU
    generators, numpy and Python's `random` are left alone. Compiled models run eagerly.
    """
    if not value.isdecimal() or int(value) > _MAX_SEED:
        raise SwitchError.explain(f"Invalid value '{value}' of the switch randomness.", why="it is a seed: 0, 1, 1234.")
    return _drawing(int(value))


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    mode = DrawOnCpu(seed)
    with torch.random.fork_rng(devices=[]), ExitStack() as block:
        torch.default_generator.manual_seed(seed)
        if torch.accelerator.is_available():
            # Fused attention draws inside its kernel, where the numbers cannot be replaced.
            block.enter_context(sdpa_kernel(SDPBackend.MATH))
        torch_private.push_mode(mode, is_part_of_training=True)
        block.callback(torch_private.remove_mode, mode)
        yield
