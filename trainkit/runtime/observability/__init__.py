"""Listings of a session, and records that it keeps of its calls."""
