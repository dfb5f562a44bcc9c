"""Runs a user's training under observation: anomalies, facts, probes, crashes.

Nothing is imported here: `supervise` must be available before torch is loaded.
"""
