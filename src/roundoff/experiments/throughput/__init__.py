"""Which way of starting a training is the fastest on this machine."""
