"""Data for the dashboard, read from experiments: single experiments, lists of experiments, and rungs."""
