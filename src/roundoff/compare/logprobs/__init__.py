"""Log-probabilities of the same tokens by two engines, a trainer and a rollout engine: how far apart, and why."""
