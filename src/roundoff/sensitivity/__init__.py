"""What rounding each op would do to the loss and the gradients, from one step of an fp32 training."""
