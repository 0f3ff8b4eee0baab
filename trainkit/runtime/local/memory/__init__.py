"""Shared memory of a session."""
