"""Operators made of Lightning modules."""
