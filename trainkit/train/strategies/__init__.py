"""Strategies that distribute a model over workers and devices: one file each, based on base.py."""
