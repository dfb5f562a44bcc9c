"""Compares a resumed run with the run that saved its checkpoint."""
