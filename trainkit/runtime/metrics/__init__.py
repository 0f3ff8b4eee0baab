"""Metrics of a session."""
