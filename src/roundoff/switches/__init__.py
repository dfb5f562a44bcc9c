"""Switches: each changes one thing about how a training computes, and nothing else."""

from roundoff.switches.op_listing import Listing, differing_ops, listing_ops, read_listing
from roundoff.switches.switching import SWITCHES_VARIABLE, switches_in_environment, switching

__all__ = [
    "SWITCHES_VARIABLE",
    "Listing",
    "differing_ops",
    "listing_ops",
    "read_listing",
    "switches_in_environment",
    "switching",
]
