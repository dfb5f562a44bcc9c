"""What two trainings were configured with, and where that differs."""
