"""Training in fixed point: weights, activations, gradients and errors, each with bits and a scale of its own."""

from roundoff.precision.fixed.model import FixedPointModel, convert_to_fixed_point
from roundoff.precision.fixed.setting import TensorSetting
from roundoff.precision.fixed.settings import FixedPointSettings
from roundoff.precision.fixed.settings_toml import settings_from_toml, settings_to_toml
from roundoff.precision.fixed.table import TensorRow

__all__ = [
    "FixedPointModel",
    "FixedPointSettings",
    "TensorRow",
    "TensorSetting",
    "convert_to_fixed_point",
    "settings_from_toml",
    "settings_to_toml",
]
