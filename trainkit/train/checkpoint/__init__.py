"""Checkpoints on disk, and their content."""
