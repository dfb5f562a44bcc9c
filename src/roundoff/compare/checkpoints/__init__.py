"""Two checkpoints: what differs tensor by tensor, and what looks wrong about it."""
