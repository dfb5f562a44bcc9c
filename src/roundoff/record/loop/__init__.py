"""What a training loop does: its calls, steps, running modules and loss scale."""
