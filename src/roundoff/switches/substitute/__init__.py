"""The switch `substitute`: chosen ops run through another implementation."""
