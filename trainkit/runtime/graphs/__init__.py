"""Graphs of remote calls."""
