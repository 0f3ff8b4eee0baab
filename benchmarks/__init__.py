"""Measurements, run by hand (`make bench`): one file per claim, each prints a table, and its rows as JSON."""
