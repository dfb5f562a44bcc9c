"""Training in fixed point: weights, activations, gradients and errors, each with its own bits and scale."""

from roundoff.precision.fixed.fixed_point_model import FixedPointModel, TensorRow, convert_to_fixed_point
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings, TensorSetting
from roundoff.precision.recipe.toml import settings_from_toml, settings_to_toml

__all__ = [
    "FixedPointModel",
    "FixedPointSettings",
    "TensorRow",
    "TensorSetting",
    "convert_to_fixed_point",
    "settings_from_toml",
    "settings_to_toml",
]
