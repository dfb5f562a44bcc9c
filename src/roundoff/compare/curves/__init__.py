"""Loss curves: read from any log, and compared beyond their noise."""
