"""The values that a run folder holds, one type for each kind of record."""
