"""Measurements, run by hand (`make bench`). Each file measures one claim and prints a table and JSON rows."""
