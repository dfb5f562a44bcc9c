"""The files of a run folder: where they are, and how each kind is written and read."""
