"""Registers the simulated device when it is imported, for scripts that know nothing of it."""

from tests.device import simulated_device

simulated_device.load()
