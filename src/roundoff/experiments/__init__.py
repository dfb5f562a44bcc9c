"""Many trainings: sweeps, throughput, and the processes that run them."""
