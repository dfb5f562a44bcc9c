"""What rounding each op would do to the loss and the gradients, from one step of an fp32 training."""

from roundoff.sensitivity.by_site import PrecisionLoss, SiteLoss, precision_loss
from roundoff.sensitivity.effect_alone import effect_alone, loss_with
from roundoff.sensitivity.measuring import Measured, measuring_sensitivity
from roundoff.sensitivity.sensitivity import Effect, Rounded, Sensitivity, most_suspicious

__all__ = [
    "Effect",
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
