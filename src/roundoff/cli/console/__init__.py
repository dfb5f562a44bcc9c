"""What all commands share: options, exit codes, progress and the width of the screen."""
