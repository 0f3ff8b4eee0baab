"""Checkpoints on disk, and their contents."""
