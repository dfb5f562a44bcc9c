"""Rules for what the training loop calls, in which order, and with which learning rate."""
