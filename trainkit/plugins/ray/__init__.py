"""Ray engine: the same functions on a Ray cluster."""
