"""The recipes that have a name, and their combinations."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Final

from roundoff.errors import RecipeError
from roundoff.precision.recipe.recipe import DYNAMIC, FLAVOURS, OperandSettings, OptimizerState, Recipe, ScaleSettings
from roundoff.precision.recipe.toml import read_recipe

_ONE: Final = ScaleSettings(kind="static", initial=1.0)


def _cast(name: str, fmt: str, description: str, *, master_weights: bool = False) -> Recipe:
    return Recipe(
        name=name,
        description=description,
        compute="cast",
        compute_format=fmt,
        weights=fmt,
        inputs=fmt,
        outputs="fp32",
        master_weights=master_weights,
    )


_BF16: Final = _cast("bf16", "bf16", "bf16 weights and compute, norms in fp32: half the memory; small updates vanish")

_FP8_ROWWISE: Final = Recipe(
    name="fp8-rowwise",
    compute="operands",
    operands=OperandSettings(
        forward="fp8-row", backward="fp8-row", weight_gradient="fp8-row", scaling="none", layers_only=True
    ),
)

_OPTIMIZER_STATES: Final[dict[OptimizerState, str]] = {
    "adam8": "optimizer state in 8 bits: a quarter of its memory, nearly the same loss; O2+adam8",
    "adam4": "optimizer state in 4 bits: an eighth of its memory, a slightly higher loss",
    "adamfp8": "optimizer state in e4m3: as small as adam8, fewer decades; for devices with fp8",
    "muon8": "momentum of Muon and SGD in 8 bits, linear: a quarter of its memory; not for Adam",
}
"""In the order of the documentation."""

_KNOWN: Final[tuple[Recipe, ...]] = (
    Recipe(name="fp32", description="plain fp32, also called O0: the reference to compare with", loss_scale=_ONE),
    _cast("half", "fp16", "model.half(), norms in fp32, no loss scale: trains at small batch and lr only"),
    replace(
        _cast("half-by-hand", "fp16", "half, and the criterion in fp16 too, as model.half() written by hand has it"),
        outputs="fp16",
    ),
    Recipe(
        name="O1",
        description="fp16 for the ops where it is safe, weights in fp32: the first to try with fp16",
        compute="lists",
        compute_format="fp16",
        outputs="fp32",
        loss_scale=DYNAMIC,
    ),
    replace(
        _cast("O2", "fp16", "fp16 weights and compute, norms and master weights in fp32: trains like fp32"),
        master_weights=True,
        loss_scale=DYNAMIC,
    ),
    replace(
        _cast("O3", "fp16", "fp16 everywhere, norms too: an upper bound on speed, not for training"),
        norms="fp16",
        loss_scale=_ONE,
    ),
    Recipe(
        name="amp-fp16",
        description="torch.autocast in fp16, like torch.amp; skipped steps also restore buffers",
        compute="autocast",
        compute_format="fp16",
        outputs="fp32",
        loss_scale=FLAVOURS["torch"],
    ),
    Recipe(
        name="amp-bf16",
        description="torch.autocast in bf16, no loss scale: the first to try where bf16 is fast",
        compute="autocast",
        compute_format="bf16",
        outputs="fp32",
    ),
    _BF16,
    replace(
        _BF16,
        name="bf16-master",
        description="bf16 with fp32 master weights: small updates are kept",
        master_weights=True,
    ),
    replace(
        _BF16,
        name="bf16-stochastic",
        description="bf16 weights, stochastically rounded updates: small updates count on average",
        update="stochastic",
    ),
    replace(
        _BF16,
        name="bf16-kahan",
        description="bf16 weights with Kahan compensation in bf16: small updates add up",
        update="kahan",
    ),
    Recipe(
        name="fp8",
        description="operands of products in e4m3, gradients in e5m2, scaled per tensor",
        compute="operands",
    ),
    Recipe(
        name="fp8-delayed",
        description="fp8 with scales from the last 16 steps, like Transformer Engine",
        compute="operands",
        operands=OperandSettings(scaling="delayed"),
    ),
    Recipe(
        name="mxfp8",
        description="operands of products in blocks of 32 e4m3 with a shared scale (OCP MX)",
        compute="operands",
        operands=OperandSettings(forward="mxfp8", backward="mxfp8", scaling="none"),
    ),
    Recipe(
        name="mxfp4",
        description="operands of products in blocks of 32 e2m1, gradients rounded stochastically",
        compute="operands",
        operands=OperandSettings(forward="mxfp4", backward="mxfp4", scaling="none", backward_rounding="stochastic"),
    ),
    Recipe(
        name="nvfp4",
        description="layers in blocks of 16 e2m1, the last in bf16: 4.5 bits for a slightly higher loss",
        compute="operands",
        operands=OperandSettings(
            forward="nvfp4",
            weight="nvfp4-16x16",
            backward="nvfp4",
            weight_gradient="nvfp4",
            scaling="none",
            backward_rounding="stochastic",
            hadamard=True,
            layers_only=True,
            wide_share=0.16,
        ),
    ),
    Recipe(
        name="fp8-block",
        description="layers in e4m3 blocks of 128, weights 128x128: outliers cost only their block",
        compute="operands",
        operands=OperandSettings(
            forward="fp8-1x128",
            weight="fp8-128x128",
            backward="fp8-1x128",
            weight_gradient="fp8-1x128",
            scaling="none",
            layers_only=True,
        ),
    ),
    replace(
        _FP8_ROWWISE,
        name="fp8-rowwise",
        description="layers in e4m3, one scale per row: more accurate than fp8, less than fp8-block",
    ),
    replace(
        _FP8_ROWWISE,
        name="fp8-rowwise-gw",
        description="fp8-rowwise, weight gradients in fp32: more accurate, a third of products slow",
        operands=replace(_FP8_ROWWISE.operands, weight_gradient="fp32"),
    ),
    Recipe(
        name="fp8-hybrid",
        description="forward e4m3, input gradient e5m2, weight gradient fp32: safe, less gain than fp8",
        compute="operands",
        operands=OperandSettings(weight_gradient="fp32", layers_only=True),
    ),
    Recipe(
        name="int8",
        description="layers in int8, one scale per row: for devices with fast int8 and no fp8",
        compute="operands",
        operands=OperandSettings(
            forward="int8-row", backward="int8-row", weight_gradient="int8-row", scaling="none", layers_only=True
        ),
    ),
    *(
        Recipe(
            name=f"qat-{name}",
            description=f"trains as fp32 for inference in {what}",
            compute="operands",
            operands=OperandSettings(forward=inputs, weight=weight, backward="fp32", scaling="none", layers_only=True),
        )
        for name, inputs, weight, what in (
            ("int8", "int8-row", "int8-row", "int8: nearly no loss of accuracy"),
            ("int4", "int8-row", "int4-group32", "int4 groups of 32, int8 inputs: small, some loss"),
            ("nvfp4", "nvfp4", "nvfp4", "nvfp4: small and fast there, some loss"),
        )
    ),
    Recipe(name="fixed", description="fixed point, 8 bits, for weights, activations and gradients", compute="fixed"),
    *(
        Recipe(
            name=f"act{bits}",
            description=f"saved activations in {bits} bits: less memory; add it to any recipe: O2+act{bits}",
            activation_bits=bits,
        )
        for bits in (8, 4, 2)
    ),
    *(
        Recipe(name=name, description=description, optimizer_states=(name,))
        for name, description in _OPTIMIZER_STATES.items()
    ),
    Recipe(
        name="ascend-fp16",
        description="emulates a device whose products, pooling, LSTM, sort are fp16; add it to any",
        device_profile="ascend-fp16",
    ),
)
_BY_NAME: Final = {recipe.name: recipe for recipe in _KNOWN}
_OTHER_NAMES: Final = {"O0": "fp32", "fp16": "half", "bf16-nearest": "bf16"}
_WIDTH: Final = 90
"""Line width of the error message that lists all names."""


def known_recipes() -> tuple[Recipe, ...]:
    """Return all named recipes, in the order of the documentation."""
    return _KNOWN


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name, or a combination such as `O2+act4`.

    The parts after the first can only add compressed activations (act2, act4, act8), packed optimizer state (adam8,
    adam4, adamfp8, muon8) or a device profile.

    >>> recipe_named("O2+act4").activation_bits
    4

    Raises:
        RecipeError: no recipe has that name, or its parts contradict each other.
    """
    first, *others = (_single(part, whole=name) for part in name.split("+"))
    recipe = first
    for other in others:
        recipe = _combine(recipe, other, whole=name)
    return recipe


def find_recipe(recipe: str | Path | Recipe) -> Recipe:
    """Return the recipe that a name or the path of a TOML file means; a `Recipe` is returned as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Path) or recipe.endswith(".toml"):
        return read_recipe(Path(recipe), named=recipe_named)
    return recipe_named(recipe)


def _single(part: str, *, whole: str) -> Recipe:
    name = _OTHER_NAMES.get(part, part)
    if known := _BY_NAME.get(name):
        return known
    names = [*_BY_NAME, *_OTHER_NAMES]
    close = difflib.get_close_matches(part, names, n=1, cutoff=0.5)
    why = f"known recipes are {', '.join(names)}, their combinations (O2+act4) and TOML files (mine.toml)."
    raise RecipeError.explain(
        f"No recipe '{whole}'." if part == whole else f"No recipe '{part}' in '{whole}'.",
        why="\n       ".join(textwrap.wrap(why, _WIDTH, break_on_hyphens=False)),
        fix=f"did you mean '{close[0]}'?" if close else "see `roundoff recipes`.",
    )


def _combine(recipe: Recipe, other: Recipe, *, whole: str) -> Recipe:
    bits, profile, states = other.activation_bits, other.device_profile, other.optimizer_states
    are_twice = (
        (bits and recipe.activation_bits)
        or (profile and recipe.device_profile)
        or set(states) & set(recipe.optimizer_states)
    )
    if not (bits or profile or states) or are_twice:
        raise RecipeError.explain(
            f"Invalid recipe '{whole}'.",
            why=f"'{other.name}' cannot be added to '{recipe.name}': only act2, act4, act8, adam8, adam4, adamfp8, "
            "muon8 and ascend-fp16 can, once.",
            fix="for everything else write a TOML file: roundoff docs recipes",
        )
    return replace(
        recipe,
        name=f"{recipe.name}+{other.name}",
        activation_bits=bits or recipe.activation_bits,
        device_profile=profile or recipe.device_profile,
        optimizer_states=(*recipe.optimizer_states, *states),
    )
