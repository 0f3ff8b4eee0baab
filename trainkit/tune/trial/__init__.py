"""Code of a trial in its own process."""
