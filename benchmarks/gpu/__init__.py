"""Measurements, run by hand (`make bench`): one file per claim, each prints a table and one JSON line."""
