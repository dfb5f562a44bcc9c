"""What rounding each op would do to the loss and the gradients, from one step of an fp32 training."""

from roundoff.sensitivity.effects import Effect, Rounded, Sensitivity, most_suspicious
from roundoff.sensitivity.measuring import Measured, effect_alone, loss_with, measuring_sensitivity
from roundoff.sensitivity.site_losses import PrecisionLoss, SiteLoss, precision_loss

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
