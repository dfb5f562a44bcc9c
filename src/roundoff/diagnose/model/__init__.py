"""Rules for the model: its parameters, initial values, layers and checkpoints."""
