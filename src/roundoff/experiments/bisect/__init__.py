"""The smallest set of sites that must stay wide, or that makes a run bad."""
