"""A folder of runs in a browser: the pages of `roundoff report`, live, and what they hold as JSON."""
