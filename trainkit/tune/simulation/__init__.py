"""Experiments on a virtual clock."""
