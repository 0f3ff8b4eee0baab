"""Timing figures of a trainer's ranks, traces, and searches for learning rates and batch sizes."""
