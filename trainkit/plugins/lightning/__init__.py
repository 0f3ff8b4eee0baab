"""Operators made from Lightning modules."""
