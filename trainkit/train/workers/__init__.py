"""Processes that train together, and how a trainer starts, calls and replaces them."""
