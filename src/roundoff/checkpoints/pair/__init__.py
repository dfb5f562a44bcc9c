"""Finds which tensor of one checkpoint is which tensor of another."""
