"""Rules for the loss: its course, its jumps, its factor, and its evaluation."""
