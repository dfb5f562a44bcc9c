"""Chooses who multiplies in a linear layer with narrow operands: torchao's kernels on a device that has them, or us.

The kernels were never run on such a device yet. Tests hold torchao's emulation of those that have one against ours.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from roundoff.precision.recipe.named_recipes import recipe_named
from roundoff.precision.recipe.recipe import OperandSettings, Recipe

Multiply = Callable[[Tensor, Tensor], Tensor]
"""Returns `x @ weight.T`, both rounded, with a backward of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """The product of linear layers, or None if it is emulated, and why."""

    multiply: Multiply | None
    text: str
    multiple: int = 1
    """Rows, inputs and outputs of a layer must be multiples of this; other layers are emulated."""

    def fits(self, x: Any, weight: Any) -> bool:
        """Whether the kernels can multiply these."""
        if self.multiply is None or x.dim() < 2 or weight.dim() != 2:
            return False
        return not any(size % self.multiple for size in (x[..., 0].numel(), *weight.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    recipe: str
    """Recipes with its operands use these kernels."""
    capability: tuple[int, int]
    multiple: int
    build: Callable[[bool], Multiply]
    """Takes whether torchao should emulate them."""


def choose_kernels(recipe: Recipe, device: torch.device | None = None, *, emulate: bool = False) -> KernelChoice:
    """Return torchao's kernels for a recipe if the device has units for them and torchao is installed.

    Args:
        recipe: One that rounds operands.
        device: Where the model is; by default the accelerator of this machine.
        emulate: Let torchao emulate its kernels, on any device, for tests.
    """
    found = next((each for each in _KERNELS if _is_alike(recipe_named(each.recipe).operands, recipe.operands)), None)
    reason = _why_emulated(recipe, found, device or _device_of_machine()) if not emulate else None
    if found is None or reason is not None:
        return KernelChoice(multiply=None, text=f"emulated: {reason}")
    try:
        multiply = found.build(emulate)
    except (ImportError, AttributeError, TypeError) as error:  # other versions of torchao have other names
        version = _torchao_version()
        why = f"torchao {version} has other kernels: {error}" if version else "torchao is not installed"
        return KernelChoice(multiply=None, text=f"emulated: {why}")
    return KernelChoice(
        multiply=multiply if emulate else _in_bf16(multiply),
        multiple=found.multiple,
        text=f"native: linear layers by the kernels of torchao {_torchao_version()}, all other products emulated",
    )


def _why_emulated(recipe: Recipe, found: _Kernels | None, device: torch.device) -> str | None:
    if recipe.arithmetic == "emulated":
        return "as the recipe says"
    if found is None:
        return "torchao has no kernels for these operands"
    if device.type != "cuda" or torch.version.cuda is None:
        return f"{'a CPU' if device.type == 'cpu' else f'device {device.type}'} has no units for it"
    capability = torch.cuda.get_device_capability(device)
    if capability < found.capability:
        needed, has = (".".join(map(str, each)) for each in (found.capability, capability))
        return f"it takes a device of compute capability {needed}, and this one has {has}"
    return None


def _device_of_machine() -> torch.device:
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _torchao_version() -> str | None:
    try:
        return importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_alike(ours: OperandSettings, theirs: OperandSettings) -> bool:
    """Whether two settings round a linear layer alike, whatever else they round and keep wide."""
    return replace(ours, layers_only=True, wide_share=0.0) == replace(theirs, layers_only=True, wide_share=0.0)


def _in_bf16(multiply: Multiply) -> Multiply:
    def multiply_in_bf16(x: Tensor, weight: Tensor) -> Tensor:
        return multiply(x.bfloat16(), weight.bfloat16()).to(x.dtype)

    return multiply_in_bf16


def _float8(*, per_row: bool, wide_weight_gradient: bool = False) -> Callable[[bool], Multiply]:
    def build(emulate: bool) -> Multiply:
        config = importlib.import_module("torchao.float8.config")
        linear = importlib.import_module("torchao.float8.float8_linear")
        tensors = importlib.import_module("torchao.float8.float8_training_tensor")
        by = config.ScalingGranularity.AXISWISE if per_row else config.ScalingGranularity.TENSORWISE
        dtype = torch.float8_e4m3fn if per_row else torch.float8_e5m2

        def cast(*, gradient: bool = False, wide: bool = False) -> Any:
            target = dtype if gradient else torch.float8_e4m3fn
            if wide:
                return config.CastConfig(scaling_type=config.ScalingType.DISABLED, target_dtype=target)
            return config.CastConfig(scaling_granularity=by, target_dtype=target)

        settings = config.Float8LinearConfig(
            cast_config_input=cast(),
            cast_config_weight=cast(),
            cast_config_grad_output=cast(gradient=True),
            cast_config_input_for_grad_weight=cast(wide=wide_weight_gradient),
            cast_config_grad_output_for_grad_weight=cast(gradient=True, wide=wide_weight_gradient),
            emulate=emulate,
        )
        products = [settings.gemm_config_output, settings.gemm_config_grad_input, settings.gemm_config_grad_weight]
        modes = [tensors.ScaledMMConfig(emulate, each.use_fast_accum, False, False) for each in products]
        mode = tensors.LinearMMConfig(*modes)
        apply = linear.matmul_with_hp_or_float8_args.apply
        return lambda x, weight: apply(x, weight.t(), mode, settings)

    return build


def _mxfp8(emulate: bool) -> Multiply:
    linear = importlib.import_module("torchao.prototype.moe_training.mxfp8_linear")
    mode = linear.KernelPreference.EMULATED if emulate else linear.KernelPreference.AUTO
    return lambda x, weight: linear._to_mxfp8_then_scaled_mm(x, weight, mode, linear.ScaleCalculationMode.FLOOR)


def _int8(emulate: bool) -> Multiply:
    linear = importlib.import_module("torchao.prototype.quantized_training.int8_mixed_precision")
    settings = linear.Int8MixedPrecisionTrainingConfig()
    apply = linear._Int8MixedPrecisionTrainingLinearFunction.apply
    return lambda x, weight: apply(x, weight, None, settings)


def _fp8_block(emulate: bool) -> Multiply:
    apply = importlib.import_module("torchao.prototype.blockwise_fp8_training.linear").fp8_blockwise_mm.apply
    return lambda x, weight: apply(x, weight, 128)


def _nvfp4(emulate: bool) -> Multiply:
    folder = "torchao.prototype.moe_training.nvfp4_training"
    apply = importlib.import_module(f"{folder}.nvfp4_linear").nvfp4_mm_triton.apply
    signs = importlib.import_module(f"{folder}.hadamard_utils").get_wgrad_sign_vector(16, device="cpu").tolist()
    seeds: dict[torch.device, Tensor] = {}

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        seed = seeds.get(x.device)
        if seed is None:
            seed = seeds[x.device] = torch.zeros(1, dtype=torch.int64, device=x.device)
        return apply(x, weight, None, seed, tuple(int(sign) for sign in signs))  # type: ignore[no-any-return]

    return multiply


_KERNELS: Final = (
    _Kernels(recipe="fp8", capability=(8, 9), multiple=16, build=_float8(per_row=False)),
    _Kernels(
        recipe="fp8-hybrid", capability=(8, 9), multiple=16, build=_float8(per_row=False, wide_weight_gradient=True)
    ),
    _Kernels(recipe="fp8-rowwise", capability=(9, 0), multiple=16, build=_float8(per_row=True)),
    _Kernels(
        recipe="fp8-rowwise-gw", capability=(9, 0), multiple=16, build=_float8(per_row=True, wide_weight_gradient=True)
    ),
    _Kernels(recipe="fp8-block", capability=(9, 0), multiple=128, build=_fp8_block),
    _Kernels(recipe="mxfp8", capability=(10, 0), multiple=32, build=_mxfp8),
    _Kernels(recipe="nvfp4", capability=(10, 0), multiple=128, build=_nvfp4),
    _Kernels(recipe="int8", capability=(8, 0), multiple=16, build=_int8),
)
