"""The runs of a directory in the browser: live reports, comparisons, and a JSON API."""
