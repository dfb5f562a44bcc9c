"""Many trainings: sweeps, throughput, bisection, and the processes that run them."""
