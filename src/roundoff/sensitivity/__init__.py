"""What rounding each op would do to the loss and the gradients, from one step of an fp32 training."""

from roundoff.sensitivity.effects import (
    LossEffect,
    PrecisionLoss,
    Rounded,
    Sensitivity,
    SiteLoss,
    most_suspicious,
    precision_loss,
)
from roundoff.sensitivity.measuring import Measured, effect_alone, loss_with, measuring_sensitivity

__all__ = [
    "LossEffect",
    "Measured",
    "PrecisionLoss",
    "Rounded",
    "Sensitivity",
    "SiteLoss",
    "effect_alone",
    "loss_with",
    "measuring_sensitivity",
    "most_suspicious",
    "precision_loss",
]
