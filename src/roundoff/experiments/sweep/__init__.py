"""A table of trainings: its definition, its rows and its results."""
