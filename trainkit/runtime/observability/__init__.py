"""Observability of a session: metrics, and the timeline of its calls."""
