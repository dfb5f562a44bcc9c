"""Two PyTorch models with the same weights, compared through one recorded step of each."""
