"""The ops of a step: the modes that see them, where each belongs, and the rows that they become."""
