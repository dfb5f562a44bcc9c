"""What rounding each op would do to the loss and the gradients, from one step of an fp32 training."""

from roundoff.sensitivity.measuring import Measured, measuring_sensitivity
from roundoff.sensitivity.sensitivity import Effect, Rounded, Sensitivity, most_suspicious

__all__ = ["Effect", "Measured", "Rounded", "Sensitivity", "measuring_sensitivity", "most_suspicious"]
