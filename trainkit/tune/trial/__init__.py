"""The trial in its own process."""
