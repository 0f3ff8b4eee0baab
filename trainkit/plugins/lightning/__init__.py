"""Operators made from Lightning modules, and Lightning's trainer in a training function."""
