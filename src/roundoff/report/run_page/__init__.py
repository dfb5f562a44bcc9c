"""The report about a run: one HTML page, one file per section."""
