"""Data of experiments for the dashboard: of one experiment, of the list of all, and of trials over time."""
