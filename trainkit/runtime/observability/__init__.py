"""Listings of a session's state, and records of its calls."""
