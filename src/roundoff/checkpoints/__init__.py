"""Parameters out of any framework's checkpoint, and the names that line them up."""
