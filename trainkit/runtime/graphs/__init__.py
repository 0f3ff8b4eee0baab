"""Graphs of calls."""
