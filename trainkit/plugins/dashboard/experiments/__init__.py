"""What the dashboard reads of experiments: one experiment, the list of all, and the courses of trials."""
