"""Switches: each changes one thing about how a training computes, and nothing else."""

from roundoff.switches.substitute.op_listing import Listing, differing_ops, listing_ops, read_listing
from roundoff.switches.switched import SWITCHES_VARIABLE, switched, switches_in_environment

__all__ = [
    "SWITCHES_VARIABLE",
    "Listing",
    "differing_ops",
    "listing_ops",
    "read_listing",
    "switched",
    "switches_in_environment",
]
