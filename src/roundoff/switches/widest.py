"""The switch `widest`: every recipe computes with as many bits as possible, and nothing else is narrow either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from roundoff.errors import SwitchError
from roundoff.precision import Recipe, recipe_named
from roundoff.precision.compute.computation import map_floats
from roundoff.precision.recipe.fixed_point_settings import KINDS, FixedPointSettings, Overrides
from roundoff.precision.recipe.recipe_environment import changing_recipes
from roundoff.torch_private import FunctionMode, never_compiled, push_function_mode, remove_function_mode

NARROW: Final = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    }
)
_CASTS: Final = frozenset({Tensor.half, Tensor.bfloat16})


class Widen(FunctionMode):
    """Replaces narrow dtypes among the arguments by fp32, and narrow tensors by wide copies.

    So `model.half()`, `x.to(torch.bfloat16)` and `torch.zeros(4, dtype=torch.half)` give fp32, and a narrow tensor from
    elsewhere is widened where it is used. A function that writes into its operand still writes into it, whatever its
    dtype.
    """

    @never_compiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with wide arguments."""
        kwargs = kwargs or {}
        if func in _CASTS:
            return args[0].float()
        if func is Tensor.view or _only_looks(func):
            return func(*args, **kwargs)
        args = tuple(map(_widen_dtype, args))
        kwargs = {name: _widen_dtype(value) for name, value in kwargs.items()}
        if not _writes_into_operand(func, kwargs):
            args, kwargs = map_floats((args, kwargs), _widen_tensor)
        return func(*args, **kwargs)


def _widen_dtype(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in NARROW else value


def _widen_tensor(x: Tensor) -> Tensor:
    return x.float() if x.dtype in NARROW else x


def _only_looks(func: Callable[..., Any]) -> bool:
    """Whether it only reads or writes an attribute: a narrow tensor must report its real properties."""
    return getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__", "is_floating_point", "element_size")


def _writes_into_operand(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return "out" in kwargs or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


OPTIONS: Final[frozenset[str]] = frozenset()
_MAX_FIXED_BITS: Final = 24
_MAX_ACTIVATION_BITS: Final = 8


def turning_on(value: str, options: Mapping[str, str]) -> AbstractContextManager[None]:
    """Widen everything inside the block.

    `fp32` applies the recipe fp32 instead of every other recipe. `own` keeps the kind of each recipe and makes it as
    wide as possible: fixed point with 24 bits, saved activations with 8, all formats fp32, loss scaling unchanged; so
    the machinery of the recipe still runs, and only its bits are excluded as a cause. With both, `torch.autocast` does
    nothing, and casts to fp16, bf16 or fp8 give fp32.
    """
    changes: dict[str, Callable[[Recipe], Recipe]] = {"fp32": lambda _: recipe_named("fp32"), "own": widest_of_its_kind}
    if value not in changes:
        raise SwitchError.explain(
            f"Invalid value '{value}' of the switch widest.",
            why="it is 'fp32', or 'own' for the widest version of each recipe.",
        )
    return _widening(changes[value])


@contextmanager
def _widening(change: Callable[[Recipe], Recipe]) -> Iterator[None]:
    mode = Widen()
    with changing_recipes(change), _without_autocast(), _without_narrow_defaults(), ExitStack() as block:
        push_function_mode(mode)
        block.callback(remove_function_mode, mode)
        yield


def widest_of_its_kind(recipe: Recipe) -> Recipe:
    """Return a recipe with the most bits of its kind, without overrides of sites.

    >>> widest_of_its_kind(recipe_named("O2+act2")).activation_bits
    8
    """
    is_fixed = recipe.compute == "fixed"
    return replace(
        recipe_named("fp32"),
        name=recipe.name,
        description=f"{recipe.name} with the most bits of its kind",
        compute="fixed" if is_fixed else "plain",
        fixed=_widen_fixed_point(recipe.fixed) if is_fixed else FixedPointSettings(),
        loss_scale=recipe.loss_scale,
        activation_bits=_MAX_ACTIVATION_BITS if recipe.least_activation_bits else 0,
    )


def _widen_fixed_point(settings: FixedPointSettings) -> FixedPointSettings:
    kinds = {kind: replace(getattr(settings, kind), bits=_MAX_FIXED_BITS) for kind in KINDS}
    return replace(settings, **kinds, types=_widen_overrides(settings.types), sites=_widen_overrides(settings.sites))


def _widen_overrides(table: Overrides) -> Overrides:
    return {
        key: {kind: replace(setting, bits=_MAX_FIXED_BITS) for kind, setting in overrides.items()}
        for key, overrides in table.items()
    }


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Make blocks of `torch.autocast` do nothing, including those around this block."""
    autocast: Any = torch.autocast
    plain = autocast.__init__
    devices = {"cpu", accelerator.type if (accelerator := torch.accelerator.current_accelerator()) else "cpu"}

    # Torch has no switch for all of them, and subclasses such as `torch.amp.autocast` call this one.
    def init_disabled(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        plain(self, device_type, enabled=False)

    with ExitStack() as block:
        for device in devices:
            block.enter_context(torch.autocast(device, enabled=False))
        autocast.__init__ = init_disabled
        try:
            yield
        finally:
            autocast.__init__ = plain


@contextmanager
def _without_narrow_defaults() -> Iterator[None]:
    """Make `torch.set_default_dtype` set fp32 instead of a narrow dtype."""
    before, plain = torch.get_default_dtype(), torch.set_default_dtype

    def set_default_dtype(d: Any) -> None:
        plain(torch.float32 if d in NARROW else d)

    set_default_dtype(before)
    torch.set_default_dtype = set_default_dtype
    try:
        yield
    finally:
        torch.set_default_dtype = plain
        plain(before)
