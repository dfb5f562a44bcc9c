"""Lines up two runs, checkpoints, curves or folders of tensors, and measures how far apart they are."""
