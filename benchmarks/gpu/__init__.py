"""Measurements on GPUs, run by hand."""
