"""Figures and traces of the ranks of a trainer."""
