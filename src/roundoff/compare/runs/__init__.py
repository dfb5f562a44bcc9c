"""Two runs, op by op: aligned, measured, and searched for the first op that introduces a difference."""
