"""Checkpoints on disk, and the state that they hold."""
