"""Switches: one thing about how a training computes, changed while everything else stays."""

from roundoff.switches.switched import SWITCHES_VARIABLE, switched, switches_in_environment

__all__ = ["SWITCHES_VARIABLE", "switched", "switches_in_environment"]
