"""Rules for what the model is given: inputs, labels and epochs."""
