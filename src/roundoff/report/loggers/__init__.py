"""Experiment loggers: a run's curves, findings and page, where people already look."""
