"""Switches: one thing about how a training computes, changed while everything else stays."""
