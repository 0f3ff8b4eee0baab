"""Copies of an experiment at other addresses."""
