"""Timing measurements and traces of a trainer's ranks, and searches for learning rates and batch sizes."""
