"""Runs somebody's training under observation: tape, snapshots, replay, crashes.

Nothing is imported here: `supervise` must be at hand before torch is loaded.
"""
