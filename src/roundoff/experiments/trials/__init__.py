"""One training tried with something changed: what is tried, in which environment, and how it is judged."""
